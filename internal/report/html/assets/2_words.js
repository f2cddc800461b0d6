// Words and numbers.

let words = {};

function say(id, ...args) {
  let text = words[id] === undefined ? id : words[id];
  args.forEach((a, i) => { text = text.replaceAll(`{${i}}`, a); });
  return text;
}

// size writes bytes as PyTorch does in its messages.
function size(n) {
  const kib = 1024, mib = kib * 1024, gib = mib * 1024;
  if (n < 0) return "-" + size(-n);
  if (n <= kib) return `${n} bytes`;
  if (n <= mib) return (n / kib).toFixed(2) + " KiB";
  if (n <= gib) return (n / mib).toFixed(2) + " MiB";
  return (n / gib).toFixed(2) + " GiB";
}

function count(n) { return n.toLocaleString("en-US"); }

function percent(part, whole) { return whole > 0 ? (100 * part / whole).toFixed(1) + " %" : ""; }

// seconds writes a time since the first event.
function seconds(us) {
  if (Math.abs(us) < 1e3) return us.toFixed(0) + " µs";
  if (Math.abs(us) < 1e6) return (us / 1e3).toFixed(2) + " ms";
  return (us / 1e6).toFixed(3) + " s";
}

function escape(text) {
  return String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
}

function kindName(k) { return say("kind_" + page.kinds[k]); }

// hex writes an address.
function hex(address) { return "0x" + address.toString(16); }

// short leaves the end of a path, which tells most.
function short(path) {
  const parts = String(path).replaceAll("\\", "/").split("/");
  return parts.length > 3 ? "…/" + parts.slice(-3).join("/") : parts.join("/");
}
