import { describe, expect, it } from "vitest";
import { programOf } from "../src/panels/Ports";

const PORT = {
  port: 8000,
  addresses: ["0.0.0.0"],
  program: "python3",
  pid: 7,
  started_at: null,
  is_answered_outside: false,
};

describe("the program of a port", () => {
  it("is named by the guest, so it is spelled out and bounded", () => {
    expect(programOf(PORT)).toBe("python3, process 7");
    expect(programOf({ ...PORT, program: "a\n\u202eb".repeat(20) })).toMatch(/^a <U\+202E>b.*…, process 7$/);
  });
  it("may be unknown, or outside", () => {
    expect(programOf({ ...PORT, program: "", pid: null })).toBe("a program that is not known");
    expect(programOf({ ...PORT, pid: null })).toBe("python3");
    expect(programOf({ ...PORT, pid: 1, is_answered_outside: true })).toBe("answered by a program outside");
  });
});
