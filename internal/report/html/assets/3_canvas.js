// What the drawings share: sharp canvases, colours of the style, the tooltip.

let colours = {};

function readColours() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of ["page", "card", "line", "ink", "soft", "faint", "accent", "bad", "good", "grid", "cached", "free", "hover",
    "weights", "gradients", "optimizer_state", "activations", "temporaries", "held", "unknown",
    "forward", "loss", "backward", "optimizer_step", "evaluation", "load"]) {
    colours[name] = style.getPropertyValue("--" + name).trim();
  }
}

function kindColour(k) { return colours[page.kinds[k]] || colours.unknown; }

// fit sizes a canvas to its place, in device pixels, and returns its context in
// CSS pixels.
function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height !== undefined) canvas.style.height = height + "px";
  const h = height !== undefined ? height : canvas.height0 || (canvas.height0 = canvas.height);
  if (height === undefined) canvas.style.height = h + "px";
  const W = Math.round(width * ratio), H = Math.round(h * ratio);
  if (canvas.width !== W || canvas.height !== H) { canvas.width = W; canvas.height = H; }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, h);
  return { ctx, width, height: h };
}

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans CJK SC", sans-serif';

// niceStep returns a step of 1, 2 or 5 times a power of the base.
function niceStep(range, ticks, base) {
  const raw = range / ticks;
  const power = Math.pow(base, Math.floor(Math.log(raw) / Math.log(base)));
  const steps = base === 2 ? [1, 2] : [1, 2, 5, 10];
  for (const s of steps) if (s * power >= raw) return s * power;
  return steps[steps.length - 1] * power;
}

const tip = {
  show(html, x, y) {
    const el = document.getElementById("tip");
    el.innerHTML = html;
    el.classList.add("on");
    const w = el.offsetWidth, h = el.offsetHeight;
    el.style.left = Math.max(8, x + 16 + w > innerWidth - 8 ? x - 16 - w : x + 16) + "px";
    el.style.top = Math.max(8, Math.min(y + 16, innerHeight - h - 8)) + "px";
  },
  hide() { document.getElementById("tip").classList.remove("on"); },
};

// fitText shortens a text to a width; it returns "" if not even three letters fit.
function fitText(ctx, text, width) {
  if (width < 20) return "";
  if (ctx.measureText(text).width <= width) return text;
  let n = Math.floor(text.length * width / ctx.measureText(text).width) - 1;
  while (n > 2 && ctx.measureText(text.slice(0, n) + "…").width > width) n--;
  return n > 2 ? text.slice(0, n) + "…" : "";
}

// schedule draws at most once a frame.
function schedule(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  };
}
