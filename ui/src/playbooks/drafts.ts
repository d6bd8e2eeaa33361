/** Texts that were begun and not registered: kept for this tab, so that leaving a page loses nothing. */
const key = (path: string | null) => `noetl.draft.${path ?? ""}`;

export function draftOf(path: string | null): string | null {
  try {
    return window.sessionStorage.getItem(key(path));
  } catch {
    return null; // storage is closed to us: the registered text is shown
  }
}

export function keepDraft(path: string | null, text: string) {
  try {
    window.sessionStorage.setItem(key(path), text);
  } catch {
    // not kept: the text lives as long as the page
  }
}

export function forgetDraft(path: string | null) {
  try {
    window.sessionStorage.removeItem(key(path));
  } catch {
    // nothing was kept
  }
}
