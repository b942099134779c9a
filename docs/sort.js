// A click on the head of a column of the leaderboard sorts its table: numbers with the largest
// first, then with the smallest; cells without one stay last. A cell counts by its first number,
// or by its text if no cell of the column but "-" begins with one.
const number = (text) => parseFloat(text.replace(/,(?=\d{3})/g, ""));

function sort(table, column, up) {
  const text = (row) => row.cells[column].textContent.trim();
  const rows = [...table.tBodies[0].rows];
  const numeric = rows.every((row) => text(row) === "-" || !isNaN(number(text(row))));
  rows.sort((one, other) => {
    const [a, b] = [text(one), text(other)];
    if (!numeric) return up ? b.localeCompare(a) : a.localeCompare(b);
    if (a === "-" || b === "-") return (a === "-") - (b === "-");
    return up ? number(a) - number(b) : number(b) - number(a);
  });
  table.tBodies[0].append(...rows);
}

document.querySelectorAll("article table").forEach((table) => {
  if (!document.querySelector("h1#leaderboard")) return;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    let up = true;
    head.style.cursor = "pointer";
    head.title = "sort";
    head.addEventListener("click", () => sort(table, column, (up = !up)));
  });
});
