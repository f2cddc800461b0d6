// The map of the segments at a moment: every byte that is reserved, laid out in
// lines. A segment is a frame; its blocks have the colour of what they hold; what
// is free shows the frame's ground.

const segmentMap = { boxes: [], line: 20 };

function buildMap() {
  const device = state.device, c = device.col, event = state.moment - 1;
  const segments = [];
  for (let r = 0; r < c.rangeFrom.length; r++) {
    if (c.rangeBorn[r] <= event && c.rangeFreed[r] > event) {
      segments.push({ from: c.rangeFrom[r], to: c.rangeFrom[r] + c.rangeBytes[r], r, small: c.rangeSmall[r], stream: c.rangeStream[r], expandable: c.rangeExpandable[r], tensors: [], used: 0 });
    }
  }
  segments.sort((a, b) => a.from - b.from);
  // The runs of one expandable segment that touch are one.
  const joined = [];
  for (const s of segments) {
    const last = joined[joined.length - 1];
    if (last && last.expandable && s.expandable && last.to === s.from && last.small === s.small && last.stream === s.stream) last.to = s.to;
    else joined.push(s);
  }
  const tensors = state.living.slice().sort((a, b) => c.addr[a] - c.addr[b]);
  let i = 0;
  for (const s of joined) {
    while (i < tensors.length && c.addr[tensors[i]] < s.from) i++;
    while (i < tensors.length && c.addr[tensors[i]] < s.to) {
      s.tensors.push(tensors[i]);
      s.used += c.bytes[tensors[i]];
      i++;
    }
  }
  segmentMap.segments = joined;
}

function drawMap() {
  if (!segmentMap.segments) return;
  const canvas = document.getElementById("map");
  const device = state.device, c = device.col;
  const segments = segmentMap.segments.slice();
  const bySize = state.order === "size";
  segments.sort((a, b) => a.stream - b.stream || a.small - b.small || (bySize ? (b.to - b.from) - (a.to - a.from) || a.from - b.from : a.from - b.from));
  let total = 0;
  for (const s of segments) total += s.to - s.from;
  const width = canvas.clientWidth;
  // As many lines as make small segments visible, within bounds.
  const lines = Math.max(3, Math.min(26, Math.ceil(total / (2 << 20) * 3 / Math.max(width, 1)), Math.ceil(total / (256 << 20))));
  const scale = total > 0 ? lines * width / total : 1; // pixels a byte
  let x = 0, y = 0;
  const place = [];
  for (const s of segments) { // first where everything goes, then how high it is
    let from = s.from;
    while (from < s.to) {
      if (width - x < 3) { x = 0; y++; }
      const bytes = Math.min(s.to - from, Math.max((width - x) / scale, 1));
      place.push([s, from, from + bytes, x, y]);
      x += bytes * scale;
      from += bytes;
      if (s.to - from < 1) from = s.to;
    }
    x += segments.length < width * lines / 8 ? 2 : 0.5;
  }
  const { ctx } = fit(canvas, Math.max(1, (y + 1)) * segmentMap.line + 2);
  segmentMap.boxes = [];
  const high = segmentMap.line - 5;
  for (const [s, from, to, px, line] of place) {
    const py = line * segmentMap.line + 1, w = Math.max((to - from) * scale, 0.75);
    ctx.fillStyle = colours.free;
    ctx.fillRect(px, py, w, high);
    let lo = 0, hi = s.tensors.length;
    while (lo < hi) { const mid = (lo + hi) >> 1; if (c.addr[s.tensors[mid]] + c.bytes[s.tensors[mid]] > from) hi = mid; else lo = mid + 1; }
    for (let i = lo; i < s.tensors.length && c.addr[s.tensors[i]] < to; i++) {
      const t = s.tensors[i];
      const a = Math.max(c.addr[t], from), b = Math.min(c.addr[t] + c.bytes[t], to);
      const bw = (b - a) * scale;
      ctx.fillStyle = kindColour(c.kind[t]);
      ctx.globalAlpha = state.focus && !state.focus.has(t) ? 0.25 : 1;
      ctx.fillRect(px + (a - from) * scale, py, Math.max(bw > 4 ? bw - 0.6 : bw, 0.4), high);
    }
    ctx.globalAlpha = 1;
    ctx.strokeStyle = s.used === 0 ? colours.good : colours.faint;
    ctx.lineWidth = 0.75;
    if (w > 3) ctx.strokeRect(px + 0.4, py + 0.4, w - 0.8, high - 0.8);
    segmentMap.boxes.push([px, py, w, s, from, to, scale]);
  }
  let whole = 0, stuck = 0;
  for (const s of segments) if (s.used === 0) whole += s.to - s.from; else stuck += s.to - s.from - s.used;
  document.getElementById("map-at").textContent = momentName(state.moment) + " · " +
    say("map_sum", count(segments.length), size(total), size(whole), size(stuck));
}

const redrawMap = schedule(drawMap);

function mapHit(e) {
  const canvas = document.getElementById("map");
  const box = canvas.getBoundingClientRect();
  const x = e.clientX - box.left, y = e.clientY - box.top;
  const b = segmentMap.boxes.find((b) => x >= b[0] && x <= b[0] + b[2] && y >= b[1] && y < b[1] + segmentMap.line - 2);
  if (!b) return null;
  const [px, , , segment, from, , scale] = b;
  const addr = from + (x - px) / scale, c = state.device.col;
  const tensor = segment.tensors.find((t) => addr >= c.addr[t] && addr < c.addr[t] + c.bytes[t]);
  return { segment, tensor };
}

function segmentName(s) {
  return say(s.expandable ? "segment_expandable" : s.small ? "segment_small" : "segment_large", size(s.to - s.from)) +
    (s.stream ? " · " + say("stream", hex(s.stream)) : "");
}

function bindMap() {
  const canvas = document.getElementById("map");
  canvas.addEventListener("pointermove", (e) => {
    const hit = mapHit(e), c = state.device.col;
    canvas.style.cursor = hit && hit.tensor !== undefined ? "pointer" : "default";
    if (!hit) { tip.hide(); return; }
    const s = hit.segment, t = hit.tensor;
    const block = t === undefined ? `<div>${escape(say("free_here"))}</div>` :
      `<div><i style="background:${kindColour(c.kind[t])}"></i><b>${escape(kindName(c.kind[t]))}</b> ${size(c.bytes[t])}</div><div class="sub">${escape(placeOf(t))}</div>`;
    tip.show(`${block}<div class="sub">${escape(segmentName(s))} · ${escape(say("used", percent(s.used, s.to - s.from)))}</div>`, e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (e) => { const hit = mapHit(e); showTensor(hit && hit.tensor !== undefined ? hit.tensor : null); });
}

// showTensor tells all about one tensor beneath the map, and its life in the
// timeline.
function showTensor(t) {
  state.shown = t;
  drawDetail();
  focusOn(t === null ? null : [t]);
}

function drawDetail() {
  const el = document.getElementById("detail"), device = state.device, c = device.col, t = state.shown;
  el.classList.toggle("on", t !== null);
  if (t === null) return;
  const rows = [
    [say("kind"), `<span class="chip"><i style="background:${kindColour(c.kind[t])}"></i>${escape(kindName(c.kind[t]))}</span>`],
    [say("bytes"), size(c.bytes[t]) + (c.asked[t] >= 0 && c.asked[t] !== c.bytes[t] ? ` (${escape(say("asked", size(c.asked[t])))})` : "")],
    [say("address"), `<code>${hex(c.addr[t])}</code>`],
    [say("born"), escape(c.born[t] < 0 ? say("before_trace") : eventName(c.born[t]))],
    [say("freed"), escape(c.freed[t] >= device.events ? say("never_freed") : eventName(c.freed[t]))],
  ];
  const frames = c.stack[t] ? page.stacks[c.stack[t]] : [];
  el.innerHTML = `<dl>${rows.map(([k, v]) => `<dt>${escape(k)}</dt><dd>${v}</dd>`).join("")}</dl>` +
    (frames.length ? `<ol>${Array.from(frames).map((f) => `<li>${escape(page.frames[f][0])} <span>${escape(page.frames[f][1])}${page.frames[f][2] > 0 ? ":" + page.frames[f][2] : ""}</span></li>`).join("")}</ol>`
      : `<p class="empty">${escape(say("no_stack_recorded"))}</p>`);
}
