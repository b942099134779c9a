"use strict";

// Numbers by value, before other text; what is empty or "-" last, in either direction.
function order(one, other, down) {
  const [a, b] = [one, other].map((text) => (text === "" || text === "-" ? null : text));
  if (a === null || b === null) return (a === null) - (b === null);
  const [x, y] = [a, b].map((text) => parseFloat(text.replaceAll(",", "").replace("\u2212", "-")));
  const apart = isNaN(x) || isNaN(y)
    ? isNaN(x) - isNaN(y) || a.localeCompare(b, undefined, { numeric: true })
    : x - y;
  return down ? -apart : apart;
}

for (const table of document.querySelectorAll("table")) {
  table.tHead.addEventListener("click", (event) => {
    const title = event.target.closest("th");
    if (!title) return;
    const down = title.getAttribute("aria-sort") === "ascending";
    const body = table.tBodies[0];
    const text = (row) => row.cells[title.cellIndex]?.textContent.trim() ?? "";
    body.append(...[...body.rows].sort((a, b) => order(text(a), text(b), down)));
    for (const other of title.parentElement.cells) other.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
  });
}

const root = document.documentElement;
document.getElementById("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.style.colorScheme = (root.style.colorScheme || system) === "dark" ? "light" : "dark";
});

// Paper shows all that is folded here.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const details of folded) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of folded) details.open = false;
});
