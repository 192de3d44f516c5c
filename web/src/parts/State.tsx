/** A state as word, sign and colour. */

const SIGNS: Record<string, string> = { running: "●", working: "◐", paused: "⏸", ending: "◌", gone: "○" };

export function State({ state }: { state: string }) {
  return (
    <span className={`state ${state in SIGNS ? state : ""}`}>
      <span aria-hidden="true">{SIGNS[state] ?? "·"}</span> {state}
    </span>
  );
}
