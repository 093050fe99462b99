"""Builds of one program on a cluster, one after the other: `python -m tests.builder.cluster_session FOLDER ADDRESS CLIENT`.

It prints what became of each as JSON: by name the number of built shards or the error, and the warnings.
"""

import json
import logging
import os
import re
import sys
from pathlib import Path

import ray

import tfprep
from tests.builder.test_at_store import content
from tests.storage.server import s3_server
from tfprep.builder import BuildOptions, Ray

_TRIES = 5
NOT_STARTED = re.compile(r"(?i)ray client|client server|connection timeout|initialization failure")


def main():
    folder, address, client_address = Path(sys.argv[1]), *sys.argv[2:]
    results = {"no cluster": built(folder, "none", address="10.77.0.1:1")}
    ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    results["bad sample"] = built(folder, "bad", on_bad="fail")
    results["changed module in one program"] = with_changed_module(folder)
    assert ray.is_initialized(), "a connection of the program stays open"
    ray.shutdown()
    results["store through Ray Client"] = into_store(folder, client_address)
    print(json.dumps(results))
    return 0


def built(folder, out, *, address="auto", **options):
    try:
        summary = tfprep.build(
            folder / "slow.py", out if "://" in out else folder / out, folder / "data",
            options=BuildOptions(**options), engine=Ray(address),
        )  # fmt: skip
    except tfprep.errors.TfprepError as error:
        return {"error": str(error)}
    return {"built": summary.built_shards}


def into_store(folder, address):
    """Build into an object store that the nodes know from their runtime environment only."""
    result = {}
    with s3_server() as s3:
        os.environ.update(s3.environment)
        url = s3.new_url()
        for _ in range(_TRIES):  # Ray's client server takes long to start on a busy machine, and then gives up
            try:
                ray.init(address, runtime_env={"env_vars": s3.environment}, log_to_driver=False)
            except Exception as error:
                result = {"error": str(error)}
                continue
            result = built(folder, url)
            break
        return {**result, "equal": "error" not in result and content(url) == content(folder / "local")}


def with_changed_module(folder):
    """Change a module that this program has imported: the nodes would get the file as it is now."""
    path = folder / "neighbor/waiting.py"
    text = path.read_text()
    path.write_text(text.replace("0.05", "0.06"))
    try:
        return built(folder, "changed")
    finally:
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
