// The page: its state, and what happens when it changes.

let page;
const state = { device: null, moment: 0, living: [], focus: null, shown: null, axis: "events", frames: "python", order: "size", search: "", lang: "en" };

// eventName names an event: its number and when it was.
function eventName(event) {
  const d = state.device;
  return say("event", count(event)) + (d.timed ? " · " + seconds(d.col.time[event] - d.col.time[0]) : "");
}

// momentName names a state: after which event it is.
function momentName(s) {
  const d = state.device;
  const name = s === 0 ? say("at_start") : eventName(s - 1);
  if (d.ooms.includes(s - 1)) return say("before_oom") + " · " + name;
  return s === d.peak ? say("at_peak") + " · " + name : name;
}

// choose shows another moment.
function choose(s) {
  state.moment = s;
  state.living = living(state.device, s);
  buildFlame();
  buildMap();
  redrawTimeline();
  redrawFlame();
  redrawMap();
  drawHolders();
  drawPinned();
  document.getElementById("timeline-at").textContent = momentName(s) + " · " + say("moment_sum", size(state.device.total[s]), size(state.device.reserved[s]));
}

// focusOn shows the life of some tensors in the timeline and the map.
function focusOn(ids, key) {
  if (!ids) state.focus = null;
  else {
    const c = state.device.col, line = new Float64Array(state.device.states);
    for (const t of ids) {
      line[c.born[t] + 1] += c.bytes[t];
      if (c.freed[t] < state.device.events) line[c.freed[t] + 1] -= c.bytes[t];
    }
    for (let i = 1; i < line.length; i++) line[i] += line[i - 1];
    const set = new Set(ids);
    state.focus = { line, key, has: (t) => set.has(t) };
  }
  redrawTimeline();
  redrawMap();
  drawHolders();
}

function pressed(group, attribute, value) {
  for (const b of document.getElementById(group).querySelectorAll("button")) {
    b.setAttribute("aria-pressed", String(b.dataset[attribute] === value));
  }
}

function drawWords() {
  words = page.words[state.lang];
  document.documentElement.lang = state.lang === "zh" ? "zh-CN" : state.lang;
  for (const el of document.querySelectorAll("[data-t]")) el.textContent = say(el.dataset.t);
  for (const el of document.querySelectorAll("[data-placeholder]")) el.placeholder = say(el.dataset.placeholder);
  const d = state.device, texts = d.texts[state.lang];
  document.getElementById("headline").textContent = texts.headline;
  document.getElementById("headline").className = d.ooms.length ? "bad" : "";
  document.getElementById("lead").textContent = texts.lead;
  document.getElementById("figures").innerHTML = texts.figures.map((f) => `<div class="figure ${f.tone}"><b>${escape(f.value)}</b><span>${escape(f.label)}</span></div>`).join("");
  document.getElementById("notes").innerHTML = texts.notes.map((n) => `<li>${escape(n)}</li>`).join("");
  document.getElementById("notes-card").hidden = texts.notes.length === 0;
  drawAdvice(texts);
  const legend = d.order.slice().reverse().map((k) => `<span><i style="background:${kindColour(k)}"></i>${escape(kindName(k))}</span>`).join("");
  document.getElementById("legend").innerHTML = legend + `<span><i style="background:${colours.cached}"></i>${escape(say("cached"))}</span><span><i class="outline"></i>${escape(say("reserved"))}</span>`;
  document.getElementById("map-legend").innerHTML = legend + `<span><i style="background:${colours.free};border:1px solid ${colours.faint}"></i>${escape(say("free"))}</span>`;
  document.getElementById("axis").hidden = !d.timed;
  pressed("langs", "lang", state.lang);
  pressed("themes", "theme", document.documentElement.dataset.theme);
  pressed("axis", "axis", state.axis);
  pressed("frames", "frames", state.frames);
  pressed("order", "order", state.order);
  const tabs = document.getElementById("devices");
  tabs.hidden = page.devices.length < 2;
  tabs.innerHTML = page.devices.map((x) => `<button data-device="${x.ordinal}" aria-pressed="${x === d}">GPU ${x.ordinal}</button>`).join("");
  drawGrowth();
  drawTrials();
  drawDetail();
}

function everything() {
  drawWords();
  choose(state.moment);
}

function setDevice(device) {
  state.device = device;
  state.focus = null;
  state.shown = null;
  resetTimeline();
  state.moment = Math.max(0, Math.min(device.moment, device.states - 1));
  everything();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readColours();
  if (state.device) everything();
}

function bind() {
  const click = (id, f) => document.getElementById(id).addEventListener("click", (e) => { const b = e.target.closest("button"); if (b) f(b.dataset); });
  click("langs", (d) => { state.lang = d.lang; everything(); });
  click("themes", (d) => setTheme(d.theme));
  click("devices", (d) => setDevice(page.devices.find((x) => String(x.ordinal) === d.device)));
  click("axis", (d) => { state.axis = d.axis; pressed("axis", "axis", d.axis); resetTimeline(); redrawTimeline(); });
  click("frames", (d) => { state.frames = d.frames; pressed("frames", "frames", d.frames); buildFlame(); redrawFlame(); });
  click("order", (d) => { state.order = d.order; pressed("order", "order", d.order); redrawMap(); });
  document.getElementById("reset").addEventListener("click", () => { resetTimeline(); redrawTimeline(); });
  bindTimeline();
  bindFlame();
  bindMap();
  bindTables();
  new ResizeObserver(() => { redrawTimeline(); redrawFlame(); redrawMap(); }).observe(document.querySelector("main"));
}

// measure draws n frames of a zoom and returns the milliseconds of each.
function measure(n) {
  const times = [], length = axisOf(state.device).length;
  for (let i = 0; i < n; i++) {
    const span = length * Math.pow(0.9, i % 40);
    timeline.from = (length - span) * (i % 7) / 7;
    timeline.to = timeline.from + span;
    const start = performance.now();
    drawTimeline();
    drawMinimap();
    times.push(performance.now() - start);
  }
  resetTimeline();
  redrawTimeline();
  return times;
}

async function main() {
  page = await load();
  page.pythonStacks = [];
  page.allStacks = [];
  state.lang = page.lang;
  document.getElementById("file").textContent = page.title;
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  readColours();
  bind();
  setDevice(page.devices.find((d) => d.ordinal === page.first) || page.devices[0]);
  globalThis.unoom = { page, state, measure, choose, setTheme, timeline };
  document.documentElement.dataset.ready = "true";
}

main().catch((error) => {
  const p = document.createElement("p");
  p.id = "broken";
  p.textContent = String(error);
  document.querySelector("main").replaceChildren(p);
  document.documentElement.dataset.ready = "failed";
  throw error;
});
