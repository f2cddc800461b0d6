// The flame graph of a moment: who asked for what is allocated then. The root is
// all of it; a frame is as wide as what was asked for beneath it.

const flame = { root: null, zoom: null, boxes: [], row: 19 };

// visibleFrames returns the frames of a stack, outermost first, as the choice
// of frames wants them.
function visibleFrames(stack) {
  const cache = state.frames === "python" ? page.pythonStacks : page.allStacks;
  let frames = cache[stack];
  if (!frames) {
    frames = [];
    const ids = page.stacks[stack];
    for (let i = ids.length - 1; i >= 0; i--) {
      if (state.frames === "all" || isPython(ids[i])) frames.push(ids[i]);
    }
    if (frames.length === 0) frames = Array.from(ids).reverse();
    cache[stack] = frames;
  }
  return frames;
}

function isPython(id) {
  const file = page.frames[id][1];
  return file.endsWith(".py") || file.startsWith("<") && file.endsWith(">") || file.endsWith(".ipynb");
}

function buildFlame() {
  const device = state.device, { bytes, stack, kind } = device.col;
  const node = (name) => ({ name, bytes: 0, count: 0, kinds: new Map(), children: new Map() });
  const root = node(-1);
  const add = (n, t) => {
    n.bytes += bytes[t];
    n.count++;
    n.kinds.set(kind[t], (n.kinds.get(kind[t]) || 0) + bytes[t]);
  };
  for (const t of state.living) {
    let n = root;
    add(n, t);
    // Without a stack, memory is told apart by what it is.
    const path = stack[t] ? visibleFrames(stack[t]) : [-2 - kind[t]];
    for (const f of path) {
      let next = n.children.get(f);
      if (!next) { next = node(f); n.children.set(f, next); }
      n = next;
      add(n, t);
    }
  }
  const settle = (n, depth) => {
    n.depth = depth;
    n.sorted = [...n.children.values()].sort((a, b) => b.bytes - a.bytes);
    n.kind = 0;
    let most = -1;
    for (const [k, b] of n.kinds) if (b > most) { most = b; n.kind = k; }
    let deepest = depth;
    for (const c of n.sorted) { c.parent = n; deepest = Math.max(deepest, settle(c, depth + 1)); }
    return deepest;
  };
  flame.deepest = settle(root, 0);
  flame.root = root;
  flame.zoom = root;
}

function frameName(n) {
  if (n.name === -1) return say("all_allocated");
  if (n.name <= -2) return say("no_stack", kindName(-2 - n.name));
  return page.frames[n.name][0];
}

function frameWhere(n) {
  if (n.name < 0) return "";
  const [, file, line] = page.frames[n.name];
  return file ? file + (line > 0 ? ":" + line : "") : "";
}

// frameColour gives the frames of one file one hue, and torch's own a quiet one.
function frameColour(n) {
  if (n.name < 0) return n.name === -1 ? colours.cached : kindColour(-2 - n.name);
  const file = page.frames[n.name][1];
  const dark = document.documentElement.dataset.theme === "dark";
  if (!isPython(n.name)) return dark ? "hsl(215 10% 32%)" : "hsl(215 15% 84%)";
  let h = 0;
  for (let i = Math.max(0, file.length - 24); i < file.length; i++) h = (h * 31 + file.charCodeAt(i)) >>> 0;
  const own = !/site-packages|dist-packages|\/lib\/python/.test(file.replaceAll("\\", "/"));
  const hue = own ? 12 + h % 42 : 190 + h % 60;
  return dark ? `hsl(${hue} ${own ? 52 : 26}% 40%)` : `hsl(${hue} ${own ? 88 : 45}% ${own ? 72 : 80}%)`;
}

function matches(n) {
  return state.search && (frameName(n) + " " + frameWhere(n)).toLowerCase().includes(state.search);
}

function drawFlame() {
  if (!flame.root) return;
  const canvas = document.getElementById("flame");
  const path = [];
  for (let n = flame.zoom; n; n = n.parent) path.unshift(n);
  // As high as what is wide enough to read; slivers are cut off until zoomed to.
  let depth = 0;
  const deepest = (n, level) => { depth = Math.max(depth, level); for (const c of n.sorted) if (c.bytes / flame.zoom.bytes * canvas.clientWidth >= 24) deepest(c, level + 1); };
  if (flame.zoom.bytes) deepest(flame.zoom, path.length - 1);
  const { ctx, width } = fit(canvas, Math.max(2, depth + 1) * flame.row + 2);
  flame.boxes = [];
  ctx.font = FONT;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const dark = document.documentElement.dataset.theme === "dark";
  let found = 0;
  const draw = (n, x, w, level) => {
    if (w < 0.6) return;
    const y = level * flame.row;
    const hit = matches(n);
    ctx.globalAlpha = state.search && !hit ? 0.35 : 1;
    ctx.fillStyle = hit ? colours.accent : frameColour(n);
    ctx.fillRect(x, y, Math.max(w - 0.75, 0.5), flame.row - 1.5);
    flame.boxes.push([x, y, w, n]);
    const label = fitText(ctx, frameName(n), w - 10);
    if (label) {
      ctx.fillStyle = hit ? "#fff" : dark ? "#eef1f6" : "#1b2230";
      ctx.fillText(label, x + 5, y + flame.row / 2);
      const at = ctx.measureText(label).width;
      const more = w - at - 22 > 60 ? fitText(ctx, size(n.bytes), w - at - 22) : "";
      if (more) { ctx.globalAlpha *= 0.6; ctx.fillText(more, x + at + 13, y + flame.row / 2); }
    }
    ctx.globalAlpha = 1;
  };
  path.slice(0, -1).forEach((n, level) => draw(n, 0, width, level));
  const walk = (n, x, w, level) => {
    draw(n, x, w, level);
    let at = x;
    for (const c of n.sorted) {
      const cw = c.bytes / n.bytes * w;
      if (cw < 0.6) break; // the rest is narrower still
      walk(c, at, cw, level + 1);
      at += cw;
    }
  };
  if (flame.zoom.bytes) walk(flame.zoom, 0, width, path.length - 1);
  if (state.search) {
    const sum = (n) => { if (matches(n)) { found += n.bytes; return; } n.sorted.forEach(sum); };
    sum(flame.root);
  }
  document.getElementById("flame-at").textContent = momentName(state.moment) +
    (state.search ? " · " + say("found", size(found), percent(found, flame.root.bytes)) : "");
}

const redrawFlame = schedule(drawFlame);

function bindFlame() {
  const canvas = document.getElementById("flame");
  const at = (e) => {
    const box = canvas.getBoundingClientRect();
    const x = e.clientX - box.left, y = e.clientY - box.top;
    return flame.boxes.find((b) => x >= b[0] && x < b[0] + b[2] && y >= b[1] && y < b[1] + flame.row);
  };
  canvas.addEventListener("pointermove", (e) => {
    const hit = at(e);
    canvas.style.cursor = hit ? "pointer" : "default";
    if (!hit) { tip.hide(); return; }
    const n = hit[3];
    tip.show(`<b>${escape(frameName(n))}</b><div class="sub">${escape(frameWhere(n))}</div>
      <table><tr><td>${escape(say("bytes"))}</td><td>${size(n.bytes)} · ${percent(n.bytes, flame.root.bytes)}</td></tr>
      <tr><td>${escape(say("tensors"))}</td><td>${count(n.count)}</td></tr>
      <tr><td>${escape(say("mostly"))}</td><td><i style="background:${kindColour(n.kind)}"></i>${escape(kindName(n.kind))}</td></tr></table>`, e.clientX, e.clientY);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (e) => { const hit = at(e); if (hit) { flame.zoom = hit[3]; redrawFlame(); } });
  document.getElementById("flame-search").addEventListener("input", (e) => { state.search = e.target.value.trim().toLowerCase(); redrawFlame(); });
}
