// The panel about the chosen document, and the lists of outliers and near-duplicates.

const byId = (id) => document.getElementById(id);

function element(name, text = "", properties = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  return Object.assign(made, properties);
}

// A list entry with a button that chooses a document.
function entry(data, i, note, choose) {
  const item = element("li");
  const button = element("button", data.titles[i] || data.doc_ids[i], { className: "document" });
  button.addEventListener("click", () => choose(i));
  item.append(button, element("span", note, { className: "n" }));
  return item;
}

function showDetails(data, i, choose) {
  const panel = byId("details");
  panel.replaceChildren();
  if (i < 0) {
    panel.append(element("p", "Click a point to see its document and the nearest ones.", { className: "note" }));
    return;
  }
  panel.append(element("h2", data.titles[i] || data.doc_ids[i], { id: "chosen", tabIndex: -1 }));
  const facts = element("dl", "", { className: "metadata" });
  const fact = (name, value) => {
    const row = element("div");
    row.append(element("dt", name), element("dd", value));
    facts.append(row);
  };
  fact("id", data.doc_ids[i]);
  fact("cluster", data.names[data.cluster[i]]);
  fact("mean distance", data.distance[i].toFixed(3));
  for (const column of data.columns) {
    const value = shownValue(column, i);
    if (value !== null) fact(column.name, value);
  }
  panel.append(facts, element("p", data.texts[i], { className: "text" }), element("h3", "Nearest"));
  const near = element("ol", "", { className: "documents", id: "near" });
  for (let place = i * data.k; place < (i + 1) * data.k; place++) {
    near.append(entry(data, data.near[place], data.scores[place].toFixed(3), choose));
  }
  panel.append(near);
  if (data.group[i] >= 0) showGroup(data, i, choose, panel);
}

const MOST_OF_GROUP = 50;

function showGroup(data, i, choose, panel) {
  const members = [];
  data.group.forEach((group, other) => { if (group === data.group[i] && other !== i) members.push(other); });
  const list = element("ol", "", { className: "documents" });
  for (const other of members.slice(0, MOST_OF_GROUP)) list.append(entry(data, other, "", choose));
  panel.append(element("h3", `${members.length.toLocaleString("en")} near-duplicates`), list);
}

function showOutliers(data, choose) {
  byId("outliers").replaceChildren(...data.outliers.map((i) => entry(data, i, data.distance[i].toFixed(3), choose)));
}
