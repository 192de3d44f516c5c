import { describe, expect, it } from "vitest";
import type { AuditEntry, Cell, Checkpoint } from "../src/api/types";
import { narrowerThanTheServers } from "../src/parts/policy";
import { readChart, ticks } from "../src/results/chart";
import { csv, ordered, readFrame } from "../src/results/DataGrid";
import { bounded } from "../src/results/HtmlFrame";
import { isExact, laidOut } from "../src/results/json";
import { jpegSize, pngSize } from "../src/results/Picture";
import { marksOf } from "../src/views/timeline";

describe("frames of data", () => {
  const frame = readFrame({ n: [10, 2, null], s: ["=1+1", 'a "b"', "c"] });
  if (!frame) throw new Error("no frame");

  it("sort by value, with what is missing last", () => {
    expect(ordered(frame, { column: 0, isDown: false })).toEqual([1, 0, 2]);
    expect(ordered(frame, { column: 0, isDown: true })).toEqual([0, 1, 2]);
  });

  it("are copied as CSV that a spreadsheet takes for text", () => {
    expect(csv(frame, [0, 1, 2])).toBe('n,s\n10,\'=1+1\n2,"a ""b"""\n,c\n');
  });

  it("are none, where a guest says otherwise", () => {
    expect([readFrame([1]), readFrame({ a: 1 }), readFrame(null), readFrame("x")]).toEqual([
      null,
      null,
      null,
      null,
    ]);
    expect(
      readFrame(Object.fromEntries(Array.from({ length: 300 }, (_, at) => [`c${at}`, [1]])))?.hidden,
    ).toBe(200);
  });
});

describe("charts", () => {
  it("leave out what is no number", () => {
    const chart = readChart({
      type: "line",
      elements: [{ label: "l", points: [[1, 2], [2, "nan"], ["x", 3], [3, 4], 5] }, 7],
    });
    expect(chart).toMatchObject({
      kind: "line",
      series: [
        {
          label: "l",
          points: [
            { x: 1, y: 2 },
            { x: 3, y: 4 },
          ],
        },
      ],
    });
    expect(readChart({ type: "unknown" })).toBeNull();
    expect(readChart({ type: "superchart", elements: [{ type: "superchart", elements: [] }] })).toBeNull();
  });

  it("are thinned, and have round ticks", () => {
    const points = Array.from({ length: 100_000 }, (_, at) => [at, at]);
    const chart = readChart({ type: "scatter", elements: [{ label: "", points }] });
    expect(chart?.kind === "scatter" && chart.series[0]?.points.length).toBeLessThanOrEqual(5_000);
    expect(ticks(0, 10)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticks(3, 3)).toEqual([3]);
  });
});

describe("what else a guest sends", () => {
  it("has the size of its header, or is no picture", () => {
    const png = Uint8Array.from([
      0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13, 73, 72, 68, 82, 0, 0, 195, 80, 0, 0, 195,
      80,
    ]);
    expect(pngSize(png)).toEqual({ width: 50_000, height: 50_000 });
    expect(pngSize(new TextEncoder().encode("<html>no picture, really not"))).toBeNull();
    expect(jpegSize(Uint8Array.from([0xff, 0xd8, 0xff, 0xc0, 0, 17, 8, 0, 2, 0, 3, 1, 1, 1]))).toEqual({
      width: 3,
      height: 2,
    });
    expect(jpegSize(Uint8Array.from([0xff, 0xd8, 1, 2]))).toBeNull();
  });

  it("gets a bounded height", () => {
    expect([bounded(1e9), bounded(-1), bounded("9"), bounded(Number.NaN), bounded(100)]).toEqual([
      600, 24, 24, 24, 100,
    ]);
  });

  it("is laid out without a loss of digits, however deep", () => {
    expect(laidOut('{"n":9223372036854775809,"e":[],"s":"a,{b"}')).toBe(
      '{\n  "n": 9223372036854775809,\n  "e": [],\n  "s": "a,{b"\n}',
    );
    expect(laidOut("[".repeat(100_000)).length).toBeLessThan(110_000);
  });
});

describe("the policy of the page", () => {
  it("names the frame document, also where an address cannot be named", () => {
    expect(narrowerThanTheServers(new URL("https://a.example/console/"))).toMatch(
      /script-src https:\/\/a\.example\/console\/;.* frame-src https:\/\/a\.example\/console\/frame$/,
    );
    expect(narrowerThanTheServers(new URL("http://[::1]:8765/console/"))).toBe(
      "frame-src http://*:8765/console/frame",
    );
    expect(narrowerThanTheServers(new URL("https://[::1]/console/"))).toBe(
      "frame-src https://*/console/frame",
    );
  });
});

describe("the timeline", () => {
  const entry = (sequence: number, kind: string, fields: Record<string, unknown>): AuditEntry => ({
    sequence,
    at: "",
    kind,
    fields,
    previous: "",
    hash: "",
  });
  const executed = (sequence: number, execution: string, outcome = "ok") =>
    entry(sequence, "executed", { context: "default", execution, outcome });

  it("dims what was undone, and knows checkpoints that are kept", () => {
    const marks = marksOf(
      [
        executed(1, "a"),
        entry(2, "checkpoint", { verb: "take_checkpoint", checkpoint: "c1" }),
        executed(3, "b", "exception"),
        entry(4, "checkpoint", { verb: "roll_back", checkpoint: "c1" }),
        entry(5, "checkpoint", { verb: "take_checkpoint", checkpoint: "c2" }),
        entry(6, "forked", { children: ["x", 3] }),
        entry(7, "executed", { context: "other", execution: "d", outcome: "ok" }),
      ],
      [{ id: "c1", name: "start", context_id: "default" } as Checkpoint],
      [{ id: "a", position: 0, is_undone: false } as Cell],
      "default",
    );
    expect(marks.map((mark) => mark.kind)).toEqual([
      "cell",
      "checkpoint",
      "cell",
      "rollback",
      "checkpoint",
      "fork",
    ]);
    expect(marks[0]).toMatchObject({ number: 1, isUndone: false });
    expect(marks[1]).toMatchObject({ name: "start", isDropped: false, isUndone: false });
    expect(marks[2]).toMatchObject({ outcome: "exception", isUndone: true });
    expect(marks[4]).toMatchObject({ isDropped: true, isUndone: false });
    expect(marks[5]).toMatchObject({ children: ["x"] });
  });
});

it("knows a number that JavaScript may have rounded is known, at any depth", () => {
  expect(isExact({ a: [1, "9007199254740993", { b: Number.MAX_SAFE_INTEGER }, null, true] })).toBe(true);
  expect(isExact(JSON.parse('{"a": [1, {"b": 9007199254740993}]}'))).toBe(false);
  expect(isExact(JSON.parse("1e999"))).toBe(false);
  expect(isExact(0.1)).toBe(false);
  expect(isExact(JSON.parse(`${"[".repeat(5000)}1${"]".repeat(5000)}`))).toBe(true);
});
