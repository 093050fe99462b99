// Scores of the search: a page whose title holds the word stands before a class of that name (Sphinx gives 15, 11 and 6).
var Scorer = {
  objNameMatch: 7,
  objPartialMatch: 4,
  objPrio: {0: 5, 1: 2, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
