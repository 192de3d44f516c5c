/** Whether keys without a modifier act (WCAG 2.1.4): kept in this browser, switched in the list of keys. */

const NAME = "fumehood-letters";

export function areLettersOn(): boolean {
  try {
    return localStorage.getItem(NAME) !== "off";
  } catch {
    return true;
  }
}

export function setLetters(isOn: boolean): void {
  try {
    localStorage.setItem(NAME, isOn ? "on" : "off");
  } catch {
    // Where nothing can be kept, they act.
  }
}
