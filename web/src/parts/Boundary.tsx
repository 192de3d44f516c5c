/** A wall around what shows a guest's data: where that fails, a sentence stands in its place, and the rest goes on. */

import { Component, type ReactNode } from "react";

type Given = { children: ReactNode; instead: ReactNode; of?: unknown };

export class Boundary extends Component<Given, { isBroken: boolean }> {
  override state = { isBroken: false };

  static getDerivedStateFromError(): { isBroken: boolean } {
    return { isBroken: true };
  }

  /** What is shown instead may be whole. */
  override componentDidUpdate(before: Given): void {
    if (this.state.isBroken && before.of !== this.props.of) this.setState({ isBroken: false });
  }

  override render(): ReactNode {
    return this.state.isBroken ? this.props.instead : this.props.children;
  }
}
