/** Numbers, times and foreign text as people read them. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function seconds(count: number | null | undefined): string {
  if (count === null || count === undefined) return "–";
  if (count < 0.01) return `${(count * 1000).toFixed(1)} ms`;
  if (count < 60) return `${count.toFixed(2)} s`;
  return duration(count);
}

/** A length of time in its two largest units. */
export function duration(count: number): string {
  const whole = Math.max(0, Math.round(count));
  const parts: [number, string][] = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first === -1) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

// One for all: to make it takes longer than to write a hundred times with it.
const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

export function clock(at: string | number | null | undefined): string {
  return at ? CLOCK.format(new Date(at)) : "";
}

export function since(at: string, now: number): string {
  return duration((now - Date.parse(at)) / 1000);
}

/** An id with its middle left out. */
export function shortId(id: string): string {
  return id.length > 14 ? `${id.slice(0, 6)}…${id.slice(-4)}` : id;
}

// Controls, and marks that turn the direction of the text around them.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/gu;
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Foreign text with everything spelled out that a reader would not see, or that would move what he sees. */
export function visible(text: string): string {
  return text.replace(HIDDEN, spelled).replace(LONE, spelled);
}

/** Foreign text for one line: bounded, and without line ends. */
export function visibleLine(text: string, most = 200): string {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return visible(cut).replace(/[\n\t]/g, " ");
}

function spelled(found: string): string {
  const code = found.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}
