/** A chart's description, read with care: it is a guest's. What does not fit is left out. */

export type Point = { x: number; y: number };
export type Series = { label: string; points: Point[] };
export type Bar = { label: string; group: string; value: number };
export type Slice = { label: string; angle: number };
export type Box = {
  label: string;
  min: number;
  low: number;
  median: number;
  high: number;
  max: number;
  outliers: number[];
};

type Axes = { title: string; xLabel: string; yLabel: string };
export type Chart =
  | ({
      kind: "line" | "scatter";
      series: Series[];
      categories: string[] | null;
      isTime: boolean;
      xLog: boolean;
      yLog: boolean;
    } & Axes)
  | ({ kind: "bar"; bars: Bar[] } & Axes)
  | ({ kind: "box"; boxes: Box[] } & Axes)
  | { kind: "pie"; title: string; slices: Slice[] }
  | { kind: "many"; title: string; charts: Chart[] };

/** Points that are drawn; of more, each n-th. */
export const MOST_POINTS = 5_000;
const MOST_ELEMENTS = 200;

export function readChart(value: unknown): Chart | null {
  if (!isRecord(value)) return null;
  const elements = list(value.elements).slice(0, MOST_ELEMENTS);
  const axes = { title: text(value.title), xLabel: label(value, "x"), yLabel: label(value, "y") };

  switch (value.type) {
    case "line":
    case "scatter":
      return points(value.type, value, elements, axes);
    case "bar":
      return { kind: "bar", bars: elements.flatMap(bar), ...axes };
    case "box_and_whisker":
      return { kind: "box", boxes: elements.flatMap(box), ...axes };
    case "pie":
      return { kind: "pie", title: axes.title, slices: elements.flatMap(slice) };
    case "superchart": {
      const charts = elements.slice(0, 24).flatMap((each) => {
        const chart = isRecord(each) && each.type !== "superchart" ? readChart(each) : null;
        return chart ? [chart] : [];
      });
      return charts.length > 0 ? { kind: "many", title: axes.title, charts } : null;
    }
    default:
      return null;
  }
}

function points(
  kind: "line" | "scatter",
  value: Record<string, unknown>,
  elements: unknown[],
  axes: Axes,
): Chart {
  const raw = elements.filter(isRecord).map((each) => ({
    label: text(each.label),
    pairs: list(each.points).filter((pair): pair is unknown[] => Array.isArray(pair) && pair.length === 2),
  }));
  const total = raw.reduce((sum, each) => sum + each.pairs.length, 0);
  const step = Math.max(1, Math.ceil(total / MOST_POINTS));
  const firstX = raw[0]?.pairs[0]?.[0];
  const isTime =
    value.x_scale === "datetime" || (typeof firstX === "string" && !Number.isNaN(Date.parse(firstX)));
  const categories: string[] | null = typeof firstX === "string" && !isTime ? [] : null;

  const series = raw.map((each) => ({
    label: each.label,
    points: each.pairs
      .filter((_, index) => index % step === 0)
      .map(([x, y]) => ({ x: coordinate(x, isTime, categories), y: coordinate(y, false, null) }))
      .filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y)),
  }));
  return {
    kind,
    series,
    categories,
    isTime,
    xLog: value.x_scale === "log",
    yLog: value.y_scale === "log",
    ...axes,
  };
}

function coordinate(value: unknown, isTime: boolean, categories: string[] | null): number {
  if (typeof value === "number") return value;
  if (typeof value !== "string") return Number.NaN;
  if (isTime) return Date.parse(value);
  if (!categories) return Number(value);
  const found = categories.indexOf(value);
  if (found !== -1) return found;
  return categories.length < MOST_ELEMENTS ? categories.push(value) - 1 : Number.NaN;
}

function bar(value: unknown): Bar[] {
  if (!isRecord(value)) return [];
  const height = Number(value.value);
  return Number.isFinite(height)
    ? [{ label: text(value.label), group: text(value.group), value: height }]
    : [];
}

function slice(value: unknown): Slice[] {
  if (!isRecord(value)) return [];
  const angle = Number(value.angle);
  return Number.isFinite(angle) && angle > 0 ? [{ label: text(value.label), angle }] : [];
}

function box(value: unknown): Box[] {
  if (!isRecord(value)) return [];
  const [min, low, median, high, max] = [
    value.min,
    value.first_quartile,
    value.median,
    value.third_quartile,
    value.max,
  ].map(Number);
  if (![min, low, median, high, max].every(Number.isFinite)) return [];
  const outliers = list(value.outliers).map(Number).filter(Number.isFinite).slice(0, 500);
  return [{ label: text(value.label), min, low, median, high, max, outliers } as Box];
}

function label(value: Record<string, unknown>, axis: "x" | "y"): string {
  const name = text(value[`${axis}_label`]);
  const unit = text(value[`${axis}_unit`]);
  return unit && !name.includes(unit) ? `${name} (${unit})` : name;
}

function text(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** About so many round values that span a range. */
export function ticks(low: number, high: number, wanted = 5): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((each) => each * power >= rough) ?? 10) * power;
  const found: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9 && found.length < 50; at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}
