/** A chart drawn from its data, without a script of the guest; the numbers stand in a table behind it. */

import { useId, useState } from "react";
import { visibleLine } from "../parts/format";
import { type Bar, type Box, type Chart, type Series, type Slice, ticks } from "./chart";

const WIDTH = 560;
const HEIGHT = 300;
const LEFT = 58;
const RIGHT = 14;
const TOP = 12;
const BOTTOM = 48;
const HUES = 8;

type Scale = { at: (value: number) => number; ticks: number[]; show: (value: number) => string };

export function ChartView({ chart }: { chart: Chart }) {
  if (chart.kind === "many") {
    return (
      <div>
        {chart.title && <p className="chart-title">{visibleLine(chart.title)}</p>}
        <div className="charts">
          {chart.charts.map((each, index) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: subplots have no other name
            <ChartView key={index} chart={each} />
          ))}
        </div>
      </div>
    );
  }
  return <OneChart chart={chart} />;
}

function OneChart({ chart }: { chart: Exclude<Chart, { kind: "many" }> }) {
  const title = useId();
  const [isTable, setTable] = useState(false);
  const rows = rowsOf(chart);

  return (
    <figure className="chart">
      <figcaption id={title}>
        {visibleLine(chart.title) || <span className="quiet">{nameOf(chart.kind)}</span>}
      </figcaption>
      {isTable ? (
        <div className="chart-table" tabIndex={0}>
          <table className="plain">
            <tbody>
              {rows.slice(0, 1000).map((row, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: points have no other name
                <tr key={index}>
                  {row.map((value, column) => (
                    // biome-ignore lint/suspicious/noArrayIndexKey: as above
                    <td key={column}>{visibleLine(value, 60)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
          {rows.length > 1000 && <p className="quiet">{(rows.length - 1000).toLocaleString()} rows more</p>}
        </div>
      ) : (
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-labelledby={title}>
          <Drawing chart={chart} />
        </svg>
      )}
      <div className="row small">
        <Legend labels={labelsOf(chart)} />
        <button type="button" className="subtle" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
          {isTable ? "Chart" : "Numbers"}
        </button>
      </div>
    </figure>
  );
}

function Drawing({ chart }: { chart: Exclude<Chart, { kind: "many" }> }) {
  switch (chart.kind) {
    case "pie":
      return <Pie slices={chart.slices} />;
    case "bar":
      return <Bars bars={chart.bars} xLabel={chart.xLabel} yLabel={chart.yLabel} />;
    case "box":
      return <Boxes boxes={chart.boxes} xLabel={chart.xLabel} yLabel={chart.yLabel} />;
    default:
      return <Points chart={chart} />;
  }
}

/** A day; nothing for a number that is none, which a guest may have made. */
function day(value: number): string {
  const date = new Date(value);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(0, 10);
}

function Points({ chart }: { chart: Extract<Chart, { kind: "line" | "scatter" }> }) {
  const all = chart.series.flatMap((each) => each.points);
  const x = scale(
    all.map((point) => point.x),
    LEFT,
    WIDTH - RIGHT,
    chart.xLog,
  );
  const y = scale(
    all.map((point) => point.y),
    HEIGHT - BOTTOM,
    TOP,
    chart.yLog,
  );
  if (chart.isTime) x.show = day;
  if (chart.categories) {
    const names = chart.categories;
    x.ticks = names.map((_, index) => index).filter((index) => index % Math.ceil(names.length / 8) === 0);
    x.show = (value) => names[value] ?? "";
  }
  return (
    <>
      <Axes x={x} y={y} xLabel={chart.xLabel} yLabel={chart.yLabel} />
      {chart.series.map((each, index) =>
        chart.kind === "line" ? (
          <polyline
            // biome-ignore lint/suspicious/noArrayIndexKey: series may share a label
            key={index}
            className={`stroke hue-${index % HUES}`}
            points={each.points.map((point) => `${round(x.at(point.x))},${round(y.at(point.y))}`).join(" ")}
          />
        ) : (
          // biome-ignore lint/suspicious/noArrayIndexKey: series may share a label
          <g key={index} className={`fill hue-${index % HUES}`}>
            {each.points.map((point, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: points have no other name
              <circle key={at} cx={round(x.at(point.x))} cy={round(y.at(point.y))} r="3">
                <title>{`${x.show(point.x)}, ${y.show(point.y)}`}</title>
              </circle>
            ))}
          </g>
        ),
      )}
    </>
  );
}

function Bars({ bars, xLabel, yLabel }: { bars: Bar[]; xLabel: string; yLabel: string }) {
  const labels = [...new Set(bars.map((bar) => bar.label))];
  const groups = [...new Set(bars.map((bar) => bar.group))];
  const y = scale([0, ...bars.map((bar) => bar.value)], HEIGHT - BOTTOM, TOP, false);
  const band = (WIDTH - LEFT - RIGHT) / Math.max(1, labels.length);
  const width = (band * 0.74) / Math.max(1, groups.length);
  return (
    <>
      <Axes x={bands(labels, band)} y={y} xLabel={xLabel} yLabel={yLabel} />
      {bars.map((bar, index) => {
        const group = groups.indexOf(bar.group);
        const left = LEFT + labels.indexOf(bar.label) * band + band * 0.13 + group * width;
        const top = Math.min(y.at(0), y.at(bar.value));
        return (
          <rect
            // biome-ignore lint/suspicious/noArrayIndexKey: bars may share a label
            key={index}
            className={`fill hue-${group % HUES}`}
            x={round(left)}
            y={round(top)}
            width={round(Math.max(1, width - 1))}
            height={round(Math.abs(y.at(0) - y.at(bar.value)))}
          >
            <title>{`${bar.label}${bar.group ? ` (${bar.group})` : ""}: ${y.show(bar.value)}`}</title>
          </rect>
        );
      })}
    </>
  );
}

function Boxes({ boxes, xLabel, yLabel }: { boxes: Box[]; xLabel: string; yLabel: string }) {
  const y = scale(
    boxes.flatMap((box) => [box.min, box.max, ...box.outliers]),
    HEIGHT - BOTTOM,
    TOP,
    false,
  );
  const band = (WIDTH - LEFT - RIGHT) / Math.max(1, boxes.length);
  return (
    <>
      <Axes
        x={bands(
          boxes.map((box) => box.label),
          band,
        )}
        y={y}
        xLabel={xLabel}
        yLabel={yLabel}
      />
      {boxes.map((box, index) => {
        const middle = LEFT + band * (index + 0.5);
        const half = Math.min(40, band * 0.3);
        return (
          // biome-ignore lint/suspicious/noArrayIndexKey: boxes may share a label
          <g key={index} className="box hue-0">
            <line x1={middle} x2={middle} y1={y.at(box.min)} y2={y.at(box.max)} />
            <rect
              x={middle - half}
              width={half * 2}
              y={y.at(box.high)}
              height={Math.max(1, y.at(box.low) - y.at(box.high))}
            />
            <line x1={middle - half} x2={middle + half} y1={y.at(box.median)} y2={y.at(box.median)} />
            {box.outliers.map((value, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: outliers have no other name
              <circle key={at} cx={middle} cy={y.at(value)} r="2.5" />
            ))}
          </g>
        );
      })}
    </>
  );
}

function Pie({ slices }: { slices: Slice[] }) {
  const whole = slices.reduce((sum, slice) => sum + slice.angle, 0);
  const [middle, height, radius] = [WIDTH / 2, HEIGHT / 2, HEIGHT / 2 - 16];
  let turned = -Math.PI / 2;
  return (
    <>
      {slices.map((slice, index) => {
        const share = slice.angle / whole;
        const [start, end] = [turned, turned + share * 2 * Math.PI * 0.99999];
        turned += share * 2 * Math.PI;
        const at = (angle: number) =>
          `${round(middle + radius * Math.cos(angle))} ${round(height + radius * Math.sin(angle))}`;
        return (
          <path
            // biome-ignore lint/suspicious/noArrayIndexKey: slices may share a label
            key={index}
            className={`fill slice hue-${index % HUES}`}
            d={`M ${middle} ${height} L ${at(start)} A ${radius} ${radius} 0 ${share > 0.5 ? 1 : 0} 1 ${at(end)} Z`}
          >
            <title>{`${slice.label}: ${(share * 100).toFixed(1)} %`}</title>
          </path>
        );
      })}
    </>
  );
}

function Axes({ x, y, xLabel, yLabel }: { x: Scale; y: Scale; xLabel: string; yLabel: string }) {
  return (
    <g className="axes">
      {y.ticks.map((value) => (
        <g key={`y${value}`}>
          <line x1={LEFT} x2={WIDTH - RIGHT} y1={y.at(value)} y2={y.at(value)} />
          <text x={LEFT - 7} y={y.at(value) + 4} textAnchor="end">
            {visibleLine(y.show(value), 9)}
          </text>
        </g>
      ))}
      {x.ticks.map((value) => (
        <text key={`x${value}`} x={x.at(value)} y={HEIGHT - BOTTOM + 17} textAnchor="middle">
          {visibleLine(x.show(value), 12)}
        </text>
      ))}
      <text className="name" x={(LEFT + WIDTH - RIGHT) / 2} y={HEIGHT - 8} textAnchor="middle">
        {visibleLine(xLabel, 80)}
      </text>
      <text className="name" transform={`translate(13 ${HEIGHT / 2}) rotate(-90)`} textAnchor="middle">
        {visibleLine(yLabel, 50)}
      </text>
    </g>
  );
}

function Legend({ labels }: { labels: string[] }) {
  return (
    <ul className="legend">
      {labels.slice(0, 24).map((label, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: labels may be the same
        <li key={index} className={`hue-${index % HUES}`}>
          <span aria-hidden="true">■</span> {visibleLine(label, 40)}
        </li>
      ))}
    </ul>
  );
}

function scale(values: number[], from: number, to: number, isLog: boolean): Scale {
  const kept = isLog ? values.filter((value) => value > 0).map(Math.log10) : values;
  let low = kept.reduce((least, value) => Math.min(least, value), Number.POSITIVE_INFINITY);
  let high = kept.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY);
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const place = (value: number) => from + ((value - low) / (high - low)) * (to - from);
  const format = new Intl.NumberFormat("en", {
    maximumSignificantDigits: 5,
    notation: Math.max(Math.abs(low), Math.abs(high)) >= 1e6 ? "compact" : "standard",
  });
  if (!isLog) return { at: place, ticks: ticks(low, high), show: (value) => format.format(value) };
  const powers = ticks(low, high).map((value) => 10 ** value);
  return { at: (value) => place(Math.log10(value)), ticks: powers, show: (value) => value.toPrecision(3) };
}

function bands(labels: string[], band: number): Scale {
  const step = Math.ceil(labels.length / 12);
  return {
    at: (index) => LEFT + band * (index + 0.5),
    ticks: labels.map((_, index) => index).filter((index) => index % step === 0),
    show: (index) => labels[index] ?? "",
  };
}

function labelsOf(chart: Chart): string[] {
  if (chart.kind === "pie") return chart.slices.map((slice) => slice.label);
  if (chart.kind === "bar") {
    const groups = [...new Set(chart.bars.map((bar) => bar.group))];
    return groups.length > 1 || groups[0] ? groups : [];
  }
  if (chart.kind === "line" || chart.kind === "scatter") {
    const labels = chart.series.map((each: Series) => each.label);
    return labels.length > 1 || labels[0] ? labels : [];
  }
  return [];
}

function rowsOf(chart: Chart): string[][] {
  if (chart.kind === "pie") return chart.slices.map((slice) => [slice.label, `${slice.angle.toFixed(1)}°`]);
  if (chart.kind === "bar") return chart.bars.map((bar) => [bar.label, bar.group, String(bar.value)]);
  if (chart.kind === "box")
    return chart.boxes.map((box) => [
      box.label,
      ...[box.min, box.low, box.median, box.high, box.max].map(String),
    ]);
  if (chart.kind === "many") return [];
  return chart.series.flatMap((each) =>
    each.points.map((point) => [each.label, chart.categories?.[point.x] ?? String(point.x), String(point.y)]),
  );
}

function nameOf(kind: string): string {
  return kind === "box" ? "Box plot" : `${kind[0]?.toUpperCase()}${kind.slice(1)} chart`;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
