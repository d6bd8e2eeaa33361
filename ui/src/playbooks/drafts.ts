/** Unregistered changes, stored for this tab, so that leaving a page does not lose them. */
const key = (path: string | null) => `noetl.draft.${path ?? ""}`;

export function loadDraft(path: string | null): string | null {
  try {
    return window.sessionStorage.getItem(key(path));
  } catch {
    return null; // storage is not available: the registered source is shown
  }
}

export function saveDraft(path: string | null, text: string) {
  try {
    window.sessionStorage.setItem(key(path), text);
  } catch {
    // not stored: the text is lost when the page is closed
  }
}

export function deleteDraft(path: string | null) {
  try {
    window.sessionStorage.removeItem(key(path));
  } catch {
    // nothing is stored
  }
}
