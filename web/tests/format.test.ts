import { describe, expect, it } from "vitest";
import { bytes, duration, seconds, shortId, visible, visibleLine } from "../src/parts/format";

describe("numbers", () => {
  it("says sizes, times and spans in units", () => {
    expect([bytes(0), bytes(1023), bytes(1536), bytes(150 * 1024 ** 2), bytes(null)]).toEqual([
      "0 B",
      "1023 B",
      "1.5 KiB",
      "150 MiB",
      "–",
    ]);
    expect([seconds(0.0021), seconds(0.21), seconds(75)]).toEqual(["2.1 ms", "0.21 s", "1 min 15 s"]);
    expect([duration(-4), duration(86400 * 2 + 3600), duration(3600)]).toEqual(["0 s", "2 d 1 h", "1 h"]);
  });
});

describe("foreign text", () => {
  it("shows what would be hidden, and what would turn the text around it", () => {
    expect(visible("a\u0000b\u001b[31m\u007f")).toBe("a␀b␛[31m␡");
    expect(visible("safe\u202egpj.exe")).toBe("safe<U+202E>gpj.exe");
    expect(visible("a\ud800b")).toBe("a<U+D800>b");
    expect(visible("line\n\ttab 😀")).toBe("line\n\ttab 😀");
  });

  it("bounds a line, and keeps it one", () => {
    expect(visibleLine("a\nb\u2028c")).toBe("a b<U+2028>c");
    expect(visibleLine("x".repeat(300), 10)).toBe("xxxxxxxxxx…");
    expect(shortId("abcdefghijklmnopqrstuvwxyz")).toBe("abcdef…wxyz");
  });
});
