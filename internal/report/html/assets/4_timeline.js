// The timeline: what is allocated, by kind, and what is reserved, over events or
// over time. It draws one column for each pixel, at the place where most is
// allocated within it, so that no peak is lost however far it is zoomed out.

const timeline = {
  from: 0, to: 1, // the view, in units of the axis
  hover: null,
  margin: { left: 76, right: 12, top: 14, bottom: 40 },
};

function axisOf(device) {
  const time = device.col.time;
  const byTime = state.axis === "time" && device.timed;
  return {
    byTime,
    length: byTime ? Math.max(time[time.length - 1] - time[0], 1) : Math.max(device.states - 1, 1),
    // toState returns the state at a place of the axis: the last one not after it.
    toState(x) {
      if (!byTime) return Math.max(0, Math.min(device.states - 1, Math.floor(x)));
      const at = time[0] + x;
      let lo = 0, hi = time.length;
      while (lo < hi) { const mid = (lo + hi) >> 1; if (time[mid] <= at) lo = mid + 1; else hi = mid; }
      return lo;
    },
    fromState(s) { return byTime ? (s === 0 ? 0 : time[s - 1] - time[0]) : s; },
  };
}

function resetTimeline() {
  timeline.from = 0;
  timeline.to = axisOf(state.device).length;
}

// columns chooses the state that each pixel column shows.
function columns(device, axis, from, to, width) {
  const out = new Int32Array(width);
  let s0 = axis.toState(from);
  for (let p = 0; p < width; p++) {
    const s1 = axis.toState(from + (to - from) * (p + 1) / width);
    out[p] = s1 > s0 ? device.most.argmax(s0, Math.min(s1 + 1, device.states)) : s0;
    s0 = s1;
  }
  return out;
}

function paintStack(ctx, device, states, x0, top, height, ceiling) {
  const width = states.length;
  const base = new Float64Array(width);
  const y = (v) => top + height - v / ceiling * height;
  for (const k of device.order) {
    const line = device.kinds[k];
    ctx.beginPath();
    for (let p = 0; p < width; p++) ctx.lineTo(x0 + p, y(base[p]));
    for (let p = width - 1; p >= 0; p--) {
      base[p] += line[states[p]];
      ctx.lineTo(x0 + p + (p === width - 1 ? 1 : 0), y(base[p]));
    }
    ctx.closePath();
    ctx.fillStyle = kindColour(k);
    ctx.fill();
  }
}

function drawTimeline() {
  const device = state.device, axis = axisOf(device);
  const canvas = document.getElementById("timeline");
  const { ctx, width, height } = fit(canvas);
  const m = timeline.margin;
  const w = Math.max(1, Math.floor(width - m.left - m.right)), h = height - m.top - m.bottom;
  const { from, to } = timeline;
  timeline.geometry = { w, h, axis };
  const ceiling = device.ceiling * 1.06;
  const y = (v) => m.top + h - v / ceiling * h;
  ctx.font = FONT;
  ctx.textBaseline = "middle";

  // The grid: sizes to the left.
  const unit = ceiling > 4 * 1024 ** 3 ? 1024 ** 3 : ceiling > 4 * 1024 ** 2 ? 1024 ** 2 : 1024;
  const step = Math.max(niceStep(ceiling / unit, 6, 10), 1e-9) * unit;
  ctx.strokeStyle = colours.grid;
  ctx.fillStyle = colours.soft;
  ctx.textAlign = "right";
  ctx.lineWidth = 1;
  for (let v = 0; v < ceiling; v += step) {
    const at = Math.round(y(v)) + 0.5;
    ctx.beginPath(); ctx.moveTo(m.left, at); ctx.lineTo(m.left + w, at); ctx.stroke();
    ctx.fillText(v === 0 ? "0" : size(v).replace(".00 ", " "), m.left - 8, at);
  }

  ctx.save();
  ctx.beginPath(); ctx.rect(m.left, m.top - 8, w, h + 8); ctx.clip();
  const states = columns(device, axis, from, to, w);
  // Reserved behind, so that what is cached shows between.
  ctx.beginPath();
  ctx.moveTo(m.left, y(0));
  const reserved = new Float64Array(w);
  let s0 = axis.toState(from);
  for (let p = 0; p < w; p++) {
    const s1 = axis.toState(from + (to - from) * (p + 1) / w);
    reserved[p] = device.reserved[s1 > s0 ? device.mostReserved.argmax(s0, Math.min(s1 + 1, device.states)) : s0];
    s0 = s1;
    ctx.lineTo(m.left + p, y(reserved[p]));
  }
  ctx.lineTo(m.left + w, y(reserved[w - 1]));
  ctx.lineTo(m.left + w, y(0));
  ctx.closePath();
  ctx.fillStyle = colours.cached;
  ctx.fill();
  paintStack(ctx, device, states, m.left, m.top, h, ceiling);
  ctx.beginPath();
  for (let p = 0; p < w; p++) { if (p === 0 || reserved[p] !== reserved[p - 1]) { if (p) ctx.lineTo(m.left + p, y(reserved[p - 1])); ctx.lineTo(m.left + p, y(reserved[p])); } }
  ctx.lineTo(m.left + w, y(reserved[w - 1]));
  ctx.strokeStyle = colours.ink;
  ctx.lineWidth = 1.25;
  ctx.stroke();
  if (state.focus) drawFocus(ctx, device, states, m.left, y);

  const px = (s) => m.left + (axis.fromState(s) - from) / (to - from) * w;
  for (const s of device.ooms) {
    const x = Math.round(px(s + 1)) + 0.5;
    if (x < m.left || x > m.left + w) continue;
    ctx.setLineDash([4, 3]);
    ctx.strokeStyle = colours.bad;
    ctx.lineWidth = 1.5;
    ctx.beginPath(); ctx.moveTo(x, m.top - 8); ctx.lineTo(x, m.top + h); ctx.stroke();
    ctx.setLineDash([]);
  }
  // The peak, and the moment that the rest of the page shows.
  const peak = px(device.peak);
  if (peak >= m.left && peak <= m.left + w) {
    ctx.fillStyle = colours.card; ctx.strokeStyle = colours.ink; ctx.lineWidth = 1.5;
    ctx.beginPath(); ctx.arc(peak, y(device.total[device.peak]), 3.5, 0, 7); ctx.fill(); ctx.stroke();
  }
  const now = Math.round(px(state.moment)) + 0.5;
  ctx.strokeStyle = colours.accent; ctx.lineWidth = 1.5;
  ctx.beginPath(); ctx.moveTo(now, m.top - 8); ctx.lineTo(now, m.top + h); ctx.stroke();
  if (timeline.hover !== null) {
    ctx.strokeStyle = colours.faint; ctx.lineWidth = 1;
    const x = Math.round(px(timeline.hover)) + 0.5;
    ctx.beginPath(); ctx.moveTo(x, m.top); ctx.lineTo(x, m.top + h); ctx.stroke();
  }
  ctx.restore();

  drawPhases(ctx, device, axis, px, m.left, m.top + h + 3, w);
  // The axis: events or time.
  ctx.fillStyle = colours.soft;
  ctx.textAlign = "center";
  const tick = niceStep(to - from, Math.max(2, w / 110), 10);
  for (let v = Math.ceil(from / tick) * tick; v <= to; v += tick) {
    const x = m.left + (v - from) / (to - from) * w;
    if (x < m.left + 14 || x > m.left + w - 14) continue;
    ctx.fillText(axis.byTime ? seconds(v) : count(Math.round(v)), x, m.top + h + 31);
  }
}

// drawFocus draws the line of what is in focus: one place, or one tensor.
function drawFocus(ctx, device, states, x0, y) {
  const line = state.focus.line;
  ctx.beginPath();
  for (let p = 0; p < states.length; p++) ctx.lineTo(x0 + p, y(line[states[p]]));
  ctx.strokeStyle = colours.card; ctx.lineWidth = 4; ctx.stroke();
  ctx.strokeStyle = colours.accent; ctx.lineWidth = 2; ctx.stroke();
}

// drawPhases draws the band of phases and the ends of steps.
function drawPhases(ctx, device, axis, px, x0, y0, w) {
  const { phaseFrom, phaseIs } = device.col;
  ctx.textAlign = "center";
  const inside = (x) => Math.max(x0, Math.min(x0 + w, x));
  for (let i = 0; i < phaseFrom.length; i++) {
    const a = inside(px(phaseFrom[i])), b = inside(i + 1 < phaseFrom.length ? px(phaseFrom[i + 1]) : px(device.states - 1));
    const name = page.phases[phaseIs[i]];
    if (b - a < 0.3 || !colours[name]) continue;
    ctx.fillStyle = colours[name];
    ctx.fillRect(a, y0, Math.max(b - a, 0.5), 13);
    const label = fitText(ctx, say("phase_" + name), b - a - 6);
    if (label) { ctx.fillStyle = colours.soft; ctx.fillText(label, (a + b) / 2, y0 + 7); }
  }
  ctx.strokeStyle = colours.soft; ctx.lineWidth = 1;
  let last = -20;
  for (const s of device.steps) {
    const x = Math.round(px(s + 1)) + 0.5;
    if (x < x0 || x > x0 + w || x - last < 3) continue;
    last = x;
    ctx.beginPath(); ctx.moveTo(x, y0 - 2); ctx.lineTo(x, y0 + 17); ctx.stroke();
  }
}

function drawMinimap() {
  const device = state.device, axis = axisOf(device);
  const canvas = document.getElementById("minimap");
  const { ctx, width, height } = fit(canvas);
  const m = timeline.margin;
  const w = Math.max(1, Math.floor(width - m.left - m.right));
  const key = [state.device.ordinal, state.axis, w, height, document.documentElement.dataset.theme].join();
  if (timeline.small !== key) { // the whole, drawn once
    const back = timeline.back || (timeline.back = document.createElement("canvas"));
    back.width = w; back.height = height;
    const c = back.getContext("2d");
    c.clearRect(0, 0, w, height);
    paintStack(c, device, columns(device, axis, 0, axis.length, w), 0, 3, height - 4, Math.max(device.total[device.peak], 1));
    timeline.small = key;
  }
  ctx.fillStyle = colours.page;
  ctx.fillRect(m.left, 0, w, height);
  ctx.globalAlpha = 0.55;
  ctx.drawImage(timeline.back, m.left, 0, w, height);
  const a = m.left + timeline.from / axis.length * w, b = m.left + timeline.to / axis.length * w;
  ctx.globalAlpha = 1;
  ctx.save();
  ctx.beginPath(); ctx.rect(a, 0, b - a, height); ctx.clip();
  ctx.drawImage(timeline.back, m.left, 0, w, height);
  ctx.restore();
  ctx.strokeStyle = colours.accent; ctx.lineWidth = 1.5;
  ctx.strokeRect(a + 0.75, 0.75, Math.max(b - a - 1.5, 2), height - 1.5);
}

const redrawTimeline = schedule(() => { drawTimeline(); drawMinimap(); });

function view(from, to) {
  const length = timeline.geometry ? timeline.geometry.axis.length : 1;
  const least = Math.min(timeline.geometry && timeline.geometry.axis.byTime ? 50 : 8, length);
  let span = Math.min(Math.max(to - from, least), length);
  from = Math.max(0, Math.min(from, length - span));
  timeline.from = from;
  timeline.to = from + span;
  redrawTimeline();
}

function stateAt(clientX) {
  const box = document.getElementById("timeline").getBoundingClientRect();
  const { w, axis } = timeline.geometry;
  const x = (clientX - box.left - timeline.margin.left) / w;
  const s = axis.toState(timeline.from + (timeline.to - timeline.from) * Math.max(0, Math.min(1, x)));
  // The column's largest, as it is drawn.
  const next = axis.toState(timeline.from + (timeline.to - timeline.from) * Math.max(0, Math.min(1, x + 1 / w)));
  return next > s ? state.device.most.argmax(s, Math.min(next + 1, state.device.states)) : s;
}

function timelineTip(s) {
  const device = state.device;
  const rows = device.order.slice().reverse().filter((k) => device.kinds[k][s] > 0)
    .map((k) => `<tr><td><i style="background:${kindColour(k)}"></i>${escape(kindName(k))}</td><td>${size(device.kinds[k][s])}</td></tr>`);
  const cached = Math.max(0, device.reserved[s] - device.total[s]);
  return `<div class="sub">${escape(momentName(s))}</div><table>
    <tr><td><b>${escape(say("allocated"))}</b></td><td><b>${size(device.total[s])}</b></td></tr>${rows.join("")}
    <tr><td>${escape(say("cached"))}</td><td>${size(cached)}</td></tr>
    <tr><td>${escape(say("reserved"))}</td><td>${size(device.reserved[s])}</td></tr></table>`;
}

function bindTimeline() {
  const canvas = document.getElementById("timeline");
  let drag = null;
  canvas.addEventListener("pointermove", (e) => {
    if (drag) {
      const per = (timeline.to - timeline.from) / timeline.geometry.w;
      if (Math.abs(e.clientX - drag.x) > 3) drag.moved = true;
      if (drag.moved) { view(drag.from - (e.clientX - drag.x) * per, drag.to - (e.clientX - drag.x) * per); tip.hide(); return; }
    }
    timeline.hover = stateAt(e.clientX);
    tip.show(timelineTip(timeline.hover), e.clientX, e.clientY);
    redrawTimeline();
  });
  canvas.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, from: timeline.from, to: timeline.to, moved: false }; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", (e) => { if (drag && !drag.moved) choose(stateAt(e.clientX)); drag = null; });
  canvas.addEventListener("pointerleave", () => { timeline.hover = null; tip.hide(); redrawTimeline(); });
  canvas.addEventListener("wheel", (e) => {
    e.preventDefault();
    const box = canvas.getBoundingClientRect();
    const x = Math.max(0, Math.min(1, (e.clientX - box.left - timeline.margin.left) / timeline.geometry.w));
    const span = timeline.to - timeline.from;
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { view(timeline.from + e.deltaX / timeline.geometry.w * span, timeline.to + e.deltaX / timeline.geometry.w * span); return; }
    const next = span * Math.exp(Math.max(-1, Math.min(1, e.deltaY / 200)));
    const at = timeline.from + x * span;
    view(at - x * next, at - x * next + next);
  }, { passive: false });
  canvas.addEventListener("dblclick", () => { resetTimeline(); redrawTimeline(); });
  canvas.addEventListener("keydown", (e) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -100, PageDown: 100 }[e.key];
    if (step) { e.preventDefault(); choose(Math.max(0, Math.min(state.device.states - 1, state.moment + step))); }
  });
  const small = document.getElementById("minimap");
  let held = null;
  const place = (e) => {
    const box = small.getBoundingClientRect();
    const x = (e.clientX - box.left - timeline.margin.left) / timeline.geometry.w * timeline.geometry.axis.length;
    if (held === null) held = x >= timeline.from && x <= timeline.to ? x - timeline.from : (timeline.to - timeline.from) / 2;
    view(x - held, x - held + timeline.to - timeline.from);
  };
  small.addEventListener("pointerdown", (e) => { small.setPointerCapture(e.pointerId); place(e); });
  small.addEventListener("pointermove", (e) => { if (held !== null) place(e); });
  small.addEventListener("pointerup", () => { held = null; });
}
