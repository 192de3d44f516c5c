/** Text that is turned into lines in slices, so that a long output never holds the page for long. */

import type { OutputLines, Stream } from "./lines";

export type Piece = { stream: Stream; text: string; at: number | null };

/** How long a slice may take: what is left of a frame goes to what else the page does. */
export const SLICE_MILLISECONDS = 8;
/** Characters between two looks at the clock. */
export const STEP_CHARACTERS = 1 << 15;

export class SlicedOutput {
  private readonly waiting: Piece[] = [];
  private first = 0;
  private position = 0;

  constructor(
    readonly output: OutputLines,
    private readonly now: () => number = () => performance.now(),
  ) {}

  get isDone(): boolean {
    return this.first === this.waiting.length;
  }

  /** Adds text behind what waits. */
  add(stream: Stream, text: string, at: number | null): void {
    if (text !== "") this.waiting.push({ stream, text, at });
  }

  /** Takes what waits until it is done or the time is over. */
  take(milliseconds = SLICE_MILLISECONDS): void {
    const end = this.now() + milliseconds;
    let left = STEP_CHARACTERS;

    while (!this.isDone) {
      left -= this.step(left);
      if (left > 0) continue;
      if (this.now() >= end) return;
      left = STEP_CHARACTERS;
    }
    this.waiting.length = 0;
    this.first = 0;
  }

  /** Takes up to so many characters of the first piece, and returns how many. */
  private step(most: number): number {
    const piece = this.waiting[this.first];
    if (!piece) return 0;
    let end = this.position + most;
    // Both units of a character, or none.
    if ((piece.text.charCodeAt(end - 1) & 0xfc00) === 0xd800) end += 1;
    const text = piece.text.slice(this.position, end);
    this.output.append(piece.stream, text, piece.at);
    this.position += text.length;
    if (this.position >= piece.text.length) {
      this.first += 1;
      this.position = 0;
    }
    return text.length;
  }
}
