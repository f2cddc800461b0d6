// The tables: who holds the memory, what grows, which segments are stuck, what
// other settings would do.

function placeOf(t) {
  const c = state.device.col;
  return c.place[t] ? page.places[c.place[t]] : say("no_stack", kindName(c.kind[t]));
}

function chip(k) { return `<span class="chip"><i style="background:${kindColour(k)}"></i>${escape(kindName(k))}</span>`; }

function holdersNow() {
  const c = state.device.col, byPlace = new Map();
  for (const t of state.living) {
    const key = c.place[t] || -1 - c.kind[t];
    let h = byPlace.get(key);
    if (!h) { h = { key, bytes: 0, count: 0, kinds: new Map(), phase: c.phase[t], sample: t }; byPlace.set(key, h); }
    h.bytes += c.bytes[t];
    h.count++;
    h.kinds.set(c.kind[t], (h.kinds.get(c.kind[t]) || 0) + c.bytes[t]);
  }
  const list = [...byPlace.values()].sort((a, b) => b.bytes - a.bytes);
  for (const h of list) h.kind = [...h.kinds].sort((a, b) => b[1] - a[1])[0][0];
  return list;
}

const MOST_HOLDERS = 100;

function drawHolders() {
  const device = state.device, list = holdersNow(), total = device.total[state.moment];
  document.getElementById("holders-at").textContent = momentName(state.moment);
  const rows = list.slice(0, MOST_HOLDERS).map((h) => `<tr class="pick${state.focus && state.focus.key === h.key ? " on" : ""}" data-key="${h.key}">
    <td class="n">${size(h.bytes)}</td><td class="n">${percent(h.bytes, total)}</td><td class="share"><div style="width:${Math.max(1, 100 * h.bytes / Math.max(list[0].bytes, 1))}%;background:${kindColour(h.kind)}"></div></td>
    <td>${chip(h.kind)}</td><td class="n">${count(h.count)}</td><td class="place">${escape(placeOf(h.sample))}</td></tr>`);
  const rest = list.slice(MOST_HOLDERS);
  if (rest.length) rows.push(`<tr><td class="n">${size(rest.reduce((n, h) => n + h.bytes, 0))}</td><td colspan="5">${escape(say("more_places", count(rest.length)))}</td></tr>`);
  const el = document.getElementById("holders");
  el.innerHTML = list.length ? `<table class="rows"><thead><tr><th class="n">${escape(say("bytes"))}</th><th class="n">${escape(say("share"))}</th><th></th><th>${escape(say("kind"))}</th><th class="n">${escape(say("tensors"))}</th><th>${escape(say("place"))}</th></tr></thead><tbody>${rows.join("")}</tbody></table>`
    : `<p class="empty">${escape(say("nothing_allocated"))}</p>`;
}

function bindTables() {
  document.getElementById("holders").addEventListener("click", (e) => {
    const row = e.target.closest("tr[data-key]");
    if (!row) return;
    const key = Number(row.dataset.key), c = state.device.col;
    if (state.focus && state.focus.key === key) { focusOn(null); return; }
    const ids = [];
    for (let t = 0; t < c.born.length; t++) if ((c.place[t] || -1 - c.kind[t]) === key) ids.push(t);
    focusOn(ids, key);
  });
}

// sparkline draws a series as a small picture.
function sparkline(values) {
  const w = 120, h = 28, most = Math.max(...values, 1), n = Math.max(values.length - 1, 1);
  const points = values.map((v, i) => `${(i / n * (w - 4) + 2).toFixed(1)},${(h - 3 - v / most * (h - 6)).toFixed(1)}`).join(" ");
  return `<svg width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" role="img"><polyline points="${points}" fill="none" stroke="${colours.accent}" stroke-width="1.75" stroke-linejoin="round"/></svg>`;
}

function drawGrowth() {
  const list = state.device.growth, el = document.getElementById("growth");
  el.innerHTML = list.length ? `<table class="rows"><tbody>${list.map((g) => `<tr>
    <td>${sparkline(g.held)}</td><td class="n"><b>${escape(say(g.forever ? "grown" : "per_step", size(g.perStep)))}</b></td>
    <td class="place">${escape(g.place)}<small>${escape(kindName(g.kind))}</small></td></tr>`).join("")}</tbody></table>`
    : `<p class="empty">${escape(say(state.device.steps.length > 3 ? "nothing_grows" : "too_few_steps"))}</p>`;
}

// drawPinned lists the segments of the moment that are mostly free, but for a
// block that keeps them from being given back.
function drawPinned() {
  const c = state.device.col, el = document.getElementById("pinned");
  const list = (segmentMap.segments || []).filter((s) => s.used > 0 && !s.expandable && s.used < (s.to - s.from) / 2)
    .sort((a, b) => (b.to - b.from - b.used) - (a.to - a.from - a.used)).slice(0, 8);
  el.innerHTML = list.length ? `<table class="rows"><thead><tr><th class="n">${escape(say("free"))}</th><th class="n">${escape(say("held_by"))}</th><th></th></tr></thead><tbody>${list.map((s) => {
    const t = s.tensors.reduce((a, b) => (c.bytes[b] > c.bytes[a] ? b : a));
    return `<tr class="pick" data-tensor="${t}"><td class="n">${size(s.to - s.from - s.used)}</td><td class="n">${size(s.used)}</td><td class="place">${escape(placeOf(t))}<small>${escape(kindName(c.kind[t]))}</small></td></tr>`;
  }).join("")}</tbody></table>` : `<p class="empty">${escape(say("nothing_pinned"))}</p>`;
  for (const row of el.querySelectorAll("tr[data-tensor]")) row.onclick = () => { showTensor(Number(row.dataset.tensor)); document.getElementById("map-card").scrollIntoView({ behavior: "smooth" }); };
}

function drawTrials() {
  const device = state.device, list = device.trials || [];
  document.getElementById("trials-card").hidden = list.length === 0;
  document.getElementById("trials").innerHTML = `<table class="rows"><thead><tr><th class="n">${escape(say("reserved"))}</th><th class="n">${escape(say("failed"))}</th><th class="n">${escape(say("retries"))}</th><th>${escape(say("setting"))}</th></tr></thead><tbody>${
    list.map((t) => `<tr><td class="n">${size(t.reserved)}</td><td class="n">${count(t.failed)}</td><td class="n">${count(t.retries)}</td><td class="place">${t.conf ? `<code>${escape(t.conf)}</code>` : escape(say("defaults"))}${t.recorded ? ` <small>${escape(say("as_recorded"))}</small>` : ""}</td></tr>`).join("")}</tbody></table>`;
}

// drawAdvice says why, and what to do.
function drawAdvice(texts) {
  const list = (lines) => (lines.length ? `<ul>${lines.map((l) => `<li>${escape(l)}</li>`).join("")}</ul>` : "");
  document.getElementById("causes-card").hidden = texts.causes.length === 0;
  document.getElementById("causes").innerHTML = `<div class="causes">${texts.causes.map((c) =>
    `<div class="cause"><b>${escape(c.title)}</b> <span class="sub">${escape(c.share)}</span>${list(c.evidence)}</div>`).join("")}</div>`;
  document.getElementById("advice-card").hidden = texts.advice.length === 0;
  document.getElementById("advice").innerHTML = `<div class="causes">${texts.advice.map((a) =>
    `<div class="cause"><b>${escape(a.title)}</b> <code>${escape(a.code)}</code><div class="effects">${escape(a.effects)}</div><div class="sub">${escape(a.why)}</div>${
      a.change.length ? `<pre>${escape(a.change.join("\n"))}</pre>` : ""}</div>`).join("")}</div>`;
}
