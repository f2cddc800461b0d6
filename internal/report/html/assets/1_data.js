// What the page is about: a JSON header and columns of numbers behind it, gzipped
// and in base64. The layout is that of data.go.

async function load() {
  const text = document.getElementById("data").textContent.trim();
  const raw = atob(text);
  const zipped = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) zipped[i] = raw.charCodeAt(i);
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  const types = { u8: Uint8Array, i32: Int32Array, u32: Uint32Array, f64: Float64Array };
  for (const device of header.devices) {
    device.col = {};
    for (const [name, type, offset, count] of device.columns) {
      device.col[name] = new types[type](buffer, start + offset, count);
    }
    prepare(device, header);
  }
  return header;
}

// The kinds from the bottom of the timeline to its top: what stays, then what
// comes and goes.
const STACKED = ["weights", "optimizer_state", "held", "gradients", "activations", "temporaries", "unknown"];

// prepare adds up, for each kind, what is allocated in every state of a device:
// state 0 is before the first event, state i after event i-1.
function prepare(device, header) {
  const { born, freed, bytes, kind } = device.col;
  const states = device.events + 1;
  device.states = states;
  device.kinds = header.kinds.map(() => null);
  for (let t = 0; t < born.length; t++) {
    const k = kind[t];
    const line = device.kinds[k] || (device.kinds[k] = new Float64Array(states));
    line[born[t] + 1] += bytes[t];
    if (freed[t] < states - 1) line[freed[t] + 1] -= bytes[t];
  }
  device.total = new Float64Array(states);
  for (const line of device.kinds) {
    if (!line) continue;
    let sum = 0;
    for (let i = 0; i < states; i++) {
      sum += line[i];
      line[i] = sum;
      device.total[i] += sum;
    }
  }
  device.reserved = new Float64Array(states);
  const { rangeBytes, rangeBorn, rangeFreed } = device.col;
  for (let r = 0; r < rangeBytes.length; r++) {
    device.reserved[rangeBorn[r] + 1] += rangeBytes[r];
    if (rangeFreed[r] < states - 1) device.reserved[rangeFreed[r] + 1] -= rangeBytes[r];
  }
  for (let i = 1; i < states; i++) device.reserved[i] += device.reserved[i - 1];
  device.order = STACKED.map((name) => header.kinds.indexOf(name)).filter((k) => k >= 0 && device.kinds[k]);
  device.most = new Pyramid(device.total);
  device.mostReserved = new Pyramid(device.reserved);
  device.peak = device.most.argmax(0, states);
  device.ceiling = device.reserved[device.mostReserved.argmax(0, states)];
  device.ceiling = Math.max(device.ceiling, device.total[device.peak], 1);
}

// A Pyramid finds where a column is largest in any stretch, in logarithmic time:
// it holds the place of the largest value of every aligned block of 8, 64, 512 …
class Pyramid {
  constructor(values) {
    this.values = values;
    this.levels = [];
    let below = null;
    for (let n = values.length; n > 8; n = Math.ceil(n / 8)) {
      const level = new Uint32Array(Math.ceil(n / 8));
      for (let b = 0; b < level.length; b++) {
        let best = below ? below[b * 8] : b * 8;
        const end = Math.min(n, b * 8 + 8);
        for (let i = b * 8 + 1; i < end; i++) {
          const at = below ? below[i] : i;
          if (values[at] > values[best]) best = at;
        }
        level[b] = best;
      }
      this.levels.push(level);
      below = level;
    }
  }

  // argmax returns the first place of the largest value in [from, to).
  argmax(from, to) {
    const v = this.values;
    let best = from;
    let i = from;
    while (i < to) {
      let size = 1, level = -1;
      while (level + 1 < this.levels.length && i % (size * 8) === 0 && i + size * 8 <= to) { size *= 8; level++; }
      const at = level < 0 ? i : this.levels[level][i / size];
      if (v[at] > v[best]) best = at;
      i += size;
    }
    return best;
  }
}

// living returns the tensors that live in a state.
function living(device, state) {
  const { born, freed } = device.col;
  const event = state - 1;
  const out = [];
  for (let t = 0; t < born.length; t++) if (born[t] <= event && freed[t] > event) out.push(t);
  return out;
}
