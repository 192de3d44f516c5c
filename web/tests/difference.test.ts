import { describe, expect, it } from "vitest";
import { folded, linesOf, textOf } from "../src/parts/difference";

describe("two texts", () => {
  it("are one list of lines, the earlier ones first", () => {
    expect(linesOf("one\ntwo\nend\n", "one\n2\nend\n")).toEqual([
      { kind: "same", text: "one" },
      { kind: "before", text: "two" },
      { kind: "after", text: "2" },
      { kind: "same", text: "end" },
    ]);
    expect(linesOf("", "a")).toEqual([{ kind: "after", text: "a" }]);
  });
  it("are given up where next to nothing is the same", () => {
    const many = (mark: string) => Array.from({ length: 3000 }, (_, index) => `${mark}${index}`).join("\n");
    expect(linesOf(many("a"), many("b"))).toBeNull();
  });
  it("leave out what is far from every change", () => {
    const earlier = Array.from({ length: 40 }, (_, index) => `${index}\n`).join("");
    const shown = folded(linesOf(earlier, earlier.replace("20\n", "twenty\n")) ?? []);
    expect(shown[0]).toBeNull();
    expect(shown.at(-1)).toBeNull();
    expect(shown).toHaveLength(10);
  });
  it("are texts only if they are UTF-8 without NUL", () => {
    const bytes = (...all: number[]) => new Uint8Array(all).buffer;
    expect(textOf(bytes(104, 105))).toBe("hi");
    expect(textOf(bytes(255, 254))).toBeNull();
    expect(textOf(bytes(104, 0))).toBeNull();
    // Cut within the two bytes of a character.
    expect(textOf(bytes(104, 195))).toBeNull();
    expect(textOf(bytes(104, 195), true)).toBe("h");
    expect(textOf(bytes(104, 255), true)).toBeNull();
  });
});
