// On the website: a field that filters the rows of every table of the page "Which formats change which answers?".
document.addEventListener("DOMContentLoaded", () => {
  const heading = [...document.querySelectorAll("h1")].find((each) => each.textContent.startsWith("Which formats change"));
  if (!heading) return;
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = "Filter: nf4 cranfield, lancedb, answers lost";
  field.setAttribute("aria-label", "Filter rows by words");
  field.style.cssText = "width: 100%; padding: .5em; margin: 1em 0; border: 1px solid; border-radius: 4px";
  heading.after(field);
  const shown = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const table of document.querySelectorAll("table")) {
      let before = table.closest(".md-typeset__scrollwrap, .md-typeset__table") || table;
      while (before && before.tagName !== "H2") before = before.previousElementSibling || before.parentElement;
      const title = (before ? before.textContent : "").toLowerCase();
      for (const row of table.tBodies[0].rows) {
        const text = `${title} ${row.textContent.toLowerCase()}`;
        row.hidden = !words.every((word) => text.includes(word));
      }
    }
    history.replaceState(null, "", field.value ? `#filter=${encodeURIComponent(field.value)}` : location.pathname);
  };
  field.addEventListener("input", shown);
  const asked = location.hash.match(/^#filter=(.*)$/);
  if (asked) {
    field.value = decodeURIComponent(asked[1]);
    shown();
  }
});
