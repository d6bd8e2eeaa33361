/** Light or dark theme: the system's setting until the user selects one. */
import { useState } from "preact/hooks";

type Theme = "light" | "dark";
const KEY = "noetl.theme";

const chosen = (): Theme | null => {
  try {
    const kept = window.localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null; // storage is not available: use the system's setting
  }
};

const system = (): Theme => (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

export function applyTheme() {
  const theme = chosen();
  if (theme) document.documentElement.dataset.theme = theme;
}

export function ThemeSwitch() {
  const [theme, setTheme] = useState<Theme>(chosen() ?? system());
  const other = theme === "dark" ? "light" : "dark";
  const change = () => {
    try {
      window.localStorage.setItem(KEY, other);
    } catch {
      // not stored: applies until the page is closed
    }
    document.documentElement.dataset.theme = other;
    setTheme(other);
  };
  return (
    <button type="button" class="icon" onClick={change} title={`Use ${other} colours`} aria-label={`Use ${other} colours`}>
      <svg viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" aria-hidden="true">
        {theme === "dark" ? (
          <>
            <circle cx="8" cy="8" r="3" />
            <path d="M8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9" />
          </>
        ) : (
          <path d="M13.5 9.7A6 6 0 0 1 6.3 2.5a6 6 0 1 0 7.2 7.2z" />
        )}
      </svg>
    </button>
  );
}
