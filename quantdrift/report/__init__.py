"""Reports for people: the page of a run or a study, its Markdown, and its charts as pictures."""
