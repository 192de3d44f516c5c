import { describe, expect, it, vi } from "vitest";
import { verify } from "../src/audit/verify";

async function digest(text: string): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function chain(fields: string[]): Promise<string[]> {
  let previous = "0".repeat(64);
  const lines: string[] = [];
  for (const [sequence, each] of fields.entries()) {
    const bare = `{"at":"2026-01-01T00:00:00.000000+00:00","fields":${each},"kind":"executed","previous":"${previous}","sequence":${sequence}}`;
    previous = await digest(bare);
    lines.push(
      bare.replace(',"kind":"executed","previous"', `,"hash":"${previous}","kind":"executed","previous"`),
    );
  }
  return lines;
}

const LINES = await chain([
  '{"big":9223372036854775809}',
  `{"text":"a guest's ,\\"hash\\":\\"${"a".repeat(64)}\\",\\"kind\\":\\"executed\\""}`,
  '{"text":"ünïcode"}',
]);

describe("the chain of an audit record", () => {
  it("is whole on its raw lines, whatever stands in them", () => {
    const verdict = verify(`${LINES.join("\n")}\n`);
    expect(verdict).toMatchObject({ ok: true, entries: 3, first: 0, headHolds: null });
  });

  it("is verified where a page has no crypto.subtle: over HTTP, at another name than localhost", () => {
    vi.stubGlobal("crypto", { getRandomValues: crypto.getRandomValues.bind(crypto) });
    try {
      expect(crypto.subtle).toBeUndefined();
      expect(verify(LINES.join("\n"))).toMatchObject({ ok: true, entries: 3 });
      expect(verify(LINES.join("\n").replace("guest", "Guest"))).toMatchObject({ ok: false, line: 2 });
    } finally {
      vi.unstubAllGlobals();
    }
  });

  it("names the line of one changed byte", () => {
    for (const [line, from, to] of [
      [1, "4775809", "4775807"],
      [2, "guest", "Guest"],
      [3, "ünï", "uni"],
    ] as const) {
      const changed = LINES.map((text, index) => (index === line - 1 ? text.replace(from, to) : text)).join(
        "\n",
      );
      expect(verify(changed)).toMatchObject({ ok: false, line });
    }
  });

  it("names a line that was left out, and a form that is none", () => {
    expect(verify([LINES[0], LINES[2]].join("\n"))).toMatchObject({ ok: false, line: 2 });
    expect(verify([LINES[0], "{}"].join("\n"))).toMatchObject({ ok: false, line: 2 });
    expect(verify("")).toMatchObject({ ok: false, line: 1 });
  });

  it("holds a head that was kept elsewhere against it", () => {
    const head = verify(LINES.join("\n"));
    if (!head.ok) throw new Error("not whole");
    expect(verify(LINES.join("\n"), head.head)).toMatchObject({ headHolds: true });
    expect(verify(LINES.slice(0, 2).join("\n"), head.head)).toMatchObject({ ok: true, headHolds: false });
    expect(verify(LINES.slice(1).join("\n"))).toMatchObject({ ok: true, first: 1 });
  });
});
