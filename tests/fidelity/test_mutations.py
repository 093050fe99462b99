"""The mutants of `benchmarks/mutations.py` still change what they say. The run itself takes minutes and is made by hand."""

from benchmarks import mutations


def test_every_mutant_changes_one_place():
    sources, faults = mutations.package_sources(), []
    for mutant in mutations.MUTANTS:
        try:
            path, text = mutations.place(mutant, sources)
            compile(text, str(path), "exec")
        except (ValueError, SyntaxError) as error:
            faults.append(str(error))
    assert not faults, "\n".join(["change these mutants of benchmarks/mutations.py with the code:", *faults])
    assert len({mutant.name for mutant in mutations.MUTANTS}) == len(mutations.MUTANTS) >= 60
    assert {mutant.area for mutant in mutations.MUTANTS} == set(mutations.AREAS)
