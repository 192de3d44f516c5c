import { describe, expect, it } from "vitest";
import { OutputLines } from "../src/output/lines";
import { SlicedOutput, STEP_CHARACTERS } from "../src/output/slices";

describe("output in slices", () => {
  it("takes no more than the time allows, and all of it in the end, in order", () => {
    let now = 0;
    // Each look at the clock finds that five milliseconds are over.
    const sliced = new SlicedOutput(new OutputLines(), () => {
      now += 5;
      return now;
    });
    const line = `${"x".repeat(63)}\n`;
    sliced.add("stdout", line.repeat(STEP_CHARACTERS / 32), 0);
    sliced.add("stderr", "the last\n", 1);
    sliced.take(8);
    expect(sliced.isDone).toBe(false);
    expect(sliced.output.lines.length).toBe(STEP_CHARACTERS / 32);
    sliced.take(8);
    expect(sliced.isDone).toBe(true);
    expect(sliced.output.lines.at(-1)?.spans[0]?.text).toBe("the last");
    expect(sliced.output.lines.length).toBe(STEP_CHARACTERS / 32 + 1);
  });

  it("cuts neither escapes nor characters of two units", () => {
    const sliced = new SlicedOutput(new OutputLines());
    sliced.add("stdout", `${"x".repeat(STEP_CHARACTERS - 1)}\u{1f600}\n`, 0);
    sliced.add("stdout", `${"y".repeat(STEP_CHARACTERS - 3)}\u001b[31mred\n`, 0);
    sliced.take(60_000);
    expect(sliced.output.lines.map((each) => each.cut)).toEqual([
      STEP_CHARACTERS - 10_000,
      STEP_CHARACTERS - 10_000,
    ]);
    const short = new SlicedOutput(new OutputLines());
    short.add("stdout", `${"z\n".repeat(STEP_CHARACTERS / 2 - 1)}a\u{1f600}b\n`, 0);
    short.take(60_000);
    expect(short.output.lines.at(-1)?.spans[0]?.text).toBe("a\u{1f600}b");
  });
});
