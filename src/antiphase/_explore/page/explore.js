// The script of the explorer's page. It sends the settings to the planner on this machine and shows the answers.
// Text is set as text, and drawings are parsed as SVG; nothing is inserted as HTML.
"use strict";

const DEFAULTS = {
  steps: 2000, epochs: 20, batch_size: 500, epsilon: 8, delta: 1e-5,
  memory_copies: null, participation: "any", adjacency: "zero-out",
};
const WHOLE = new Set(["steps", "batch_size", "memory_copies"]);
const MEMORY = [0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 1024, null];
const SLIDER = 1000; // positions of a logarithmic slider
const WAIT = 350; // milliseconds after the last change before planning starts
const POLL = 200; // milliseconds between two requests to the server

const byId = (id) => document.getElementById(id);
const token = takeToken();
let shown = null; // the settings of the answer on the page
let current = 0; // number of the page's newest request
let timer = 0;

function takeToken() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname); // removes the token, so that it is not copied with the address
  }
  return sessionStorage.getItem("token") || "";
}

async function ask(path, data) {
  const headers = { "Content-Type": "application/json", "X-Antiphase-Token": token };
  const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(data) });
  return reply.json();
}

// Settings. They are read from the inputs, and written to the inputs and sliders.

function readSettings() {
  const settings = {};
  for (const name of Object.keys(DEFAULTS)) {
    const input = byId(name);
    if (input.tagName === "SELECT") {
      settings[name] = input.value;
    } else if (name === "memory_copies" && input.value === "" && input.validity.valid) {
      settings[name] = null;
    } else {
      const value = input.valueAsNumber;
      if (!Number.isFinite(value) || !input.checkValidity()) return null;
      settings[name] = WHOLE.has(name) ? Math.round(value) : value;
    }
  }
  return settings;
}

function show(name, value) {
  byId(name).value = value === null ? "" : String(value);
  placeSlider(name);
}

function placeSlider(name) {
  const value = byId(name).valueAsNumber;
  if (name === "memory_copies") {
    const slider = byId("memory_slider");
    const at = MEMORY.findIndex((copies) => copies === null || copies >= value);
    slider.value = Number.isFinite(value) ? at : MEMORY.length - 1;
    slider.setAttribute("aria-valuetext", Number.isFinite(value) ? `${value} buffers` : "no limit");
    return;
  }
  const slider = document.querySelector(`[data-for="${name}"]`);
  if (slider && value > 0) {
    const low = Number(slider.dataset.low), high = Number(slider.dataset.high);
    slider.value = Math.round(SLIDER * Math.log(value / low) / Math.log(high / low));
    slider.setAttribute("aria-valuetext", String(value));
  }
}

function rounded(value, whole) {
  const near = Number(value.toPrecision(2));
  return whole ? Math.max(1, Math.round(near)) : near;
}

function connect() {
  for (const slider of document.querySelectorAll("[data-for]")) {
    Object.assign(slider, { min: 0, max: SLIDER, step: 5 });
    slider.addEventListener("input", () => {
      const low = Number(slider.dataset.low), high = Number(slider.dataset.high), name = slider.dataset.for;
      const value = rounded(low * (high / low) ** (slider.value / SLIDER), WHOLE.has(name));
      byId(name).value = String(value);
      slider.setAttribute("aria-valuetext", String(value));
      changed();
    });
  }
  byId("memory_slider").addEventListener("input", (event) => {
    const copies = MEMORY[event.target.value];
    byId("memory_copies").value = copies === null ? "" : String(copies);
    placeSlider("memory_copies");
    changed();
  });
  for (const name of Object.keys(DEFAULTS)) {
    byId(name).addEventListener("input", () => {
      if (byId(name).tagName !== "SELECT") placeSlider(name);
      changed();
    });
  }
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    plan();
  });
  byId("cancel").addEventListener("click", cancel);
  for (const button of document.querySelectorAll("[data-copy]")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
}

function changed() {
  const settings = readSettings();
  if (settings === null) {
    tell("error", "One of the settings is not a number, or is out of range.");
    return;
  }
  const examples = Math.max(settings.batch_size, Math.round(settings.steps * settings.batch_size / settings.epochs));
  byId("examples").textContent = examples.toLocaleString("en");
  clearTimeout(timer);
  timer = setTimeout(plan, WAIT);
}

// Planning: start, poll, cancel.

async function plan() {
  clearTimeout(timer);
  const settings = readSettings(), number = ++current;
  if (settings === null) return;
  sessionStorage.setItem("settings", JSON.stringify(settings)); // the settings survive a reload
  byId("answer").setAttribute("aria-busy", "true");
  for (const drawing of document.querySelectorAll(".drawing, #matrices")) drawing.classList.add("old");
  try {
    let state = await ask("/api/start", settings);
    while (number === current) {
      present(state, settings);
      if (state.state !== "running") return;
      await new Promise((done) => setTimeout(done, POLL));
      if (number !== current) return;
      state = await ask("/api/state", settings);
    }
  } catch (error) {
    if (number === current) tell("error", "The server does not answer. Is antiphase explore still running?");
  }
}

async function cancel() {
  const running = byId("status").dataset.state === "running";
  current += 1;
  if (!running) {
    plan();
    return;
  }
  tell("stopped", shown ? "Cancelled. The results below are incomplete or belong to older settings." : "Cancelled.");
  try {
    await ask("/api/stop", null);
  } catch (error) {
    tell("error", "The server does not answer. Is antiphase explore still running?");
  }
}

function tell(state, message, share) {
  const status = byId("status");
  status.dataset.state = state;
  status.classList.toggle("bad", state === "error");
  if (byId("message").textContent !== message) byId("message").textContent = message;
  byId("progress").value = share || 0;
  byId("cancel").textContent = state === "running" ? "Cancel" : "Plan again";
  if (state !== "running") byId("answer").setAttribute("aria-busy", "false");
}

function present(state, settings) {
  const ready = state.parts || {};
  const key = JSON.stringify([settings, ready.plan && ready.plan.provisional]);
  if (ready.plan && shown !== key) {
    showPlan(ready.plan);
    shown = key;
  }
  for (const name of ["epsilon", "steps"]) if (ready[name]) showFigure(name, ready[name]);
  if (state.state === "running") {
    const first = !ready.plan || ready.plan.provisional;
    tell("running", first ? `Planning: ${state.what}` : `Best mechanism found. Curves: ${state.what}`, state.share);
    if (ready.plan) byId("answer").setAttribute("aria-busy", "false");
  } else if (state.state === "done") {
    tell("done", `Done: ${ready.plan.name}, ${ready.plan.batches}.`);
  } else if (state.state === "error") {
    tell("error", state.hint ? `${state.message} Hint: ${state.hint}.` : state.message);
  } else {
    tell("stopped", "Cancelled.");
  }
}

// Showing an answer.

function showPlan(part) {
  byId("answer").hidden = false;
  byId("name").textContent = part.name;
  byId("batches").textContent = `with ${part.batches}`;
  byId("sentence").textContent = part.sentence;
  byId("provisional").textContent = part.provisional || "";
  byId("facts").replaceChildren(...part.facts.flatMap(([term, text]) => [element("dt", term), element("dd", text)]));
  showFigure("memory", part.memory);
  byId("matrix").parentElement.hidden = part.matrices.length === 0;
  byId("matrices").replaceChildren(...part.matrices.map((matrix) => {
    const figure = document.createElement("figure");
    const words = element("p", matrix.summary);
    words.className = "dim";
    figure.append(element("figcaption", matrix.title), drawing(matrix.svg), words);
    return figure;
  }));
  byId("matrices").classList.remove("old");
  byId("python").textContent = part.python;
  byId("command").textContent = part.command;
  byId("note-list").replaceChildren(...part.notes.map((note) => element("li", note)));
}

function showFigure(name, part) {
  const figure = byId(`figure-${name}`), key = part.svg;
  if (figure.dataset.shown === key) {
    figure.querySelector(".drawing").classList.remove("old");
    return;
  }
  figure.dataset.shown = key;
  const place = figure.querySelector(".drawing");
  place.replaceChildren(...(part.svg ? [drawing(part.svg)] : []));
  place.classList.remove("old");
  const list = name === "epsilon" ? byId("price-words") : figure.querySelector(".words");
  if (part.words) list.replaceChildren(...part.words.map((text) => element("li", text)));
  figure.querySelector(".data").replaceChildren(table(part.table, figure.querySelector("figcaption").textContent));
}

function drawing(svg) {
  return document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
}

function element(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

function table(data, caption) {
  const region = document.createElement("div"), made = document.createElement("table");
  region.className = "scroll";
  region.tabIndex = 0;
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", caption);
  const head = document.createElement("tr");
  head.append(...data.columns.map((name) => {
    const cell = element("th", name);
    cell.scope = "col";
    return cell;
  }));
  const body = data.rows.map((row) => {
    const line = document.createElement("tr");
    line.append(...row.map((cell) => element("td", cell)));
    return line;
  });
  const top = document.createElement("thead"), bottom = document.createElement("tbody");
  top.append(head);
  bottom.append(...body);
  made.append(element("caption", caption), top, bottom);
  region.append(made);
  return region;
}

connect();
for (const [name, value] of Object.entries({ ...DEFAULTS, ...JSON.parse(sessionStorage.getItem("settings") || "{}") })) {
  if (byId(name).tagName === "SELECT") byId(name).value = value;
  else show(name, value);
}
if (token) plan();
else tell("error", "Open the address that antiphase explore printed, including the part after #.");
