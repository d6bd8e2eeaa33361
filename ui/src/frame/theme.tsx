/** Light or dark: the system's choice until the reader makes one. */
import { useState } from "preact/hooks";

type Theme = "light" | "dark";
const KEY = "noetl.theme";

const chosen = (): Theme | null => {
  try {
    const kept = window.localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : null;
  } catch {
    return null; // storage is closed to us: the system's choice holds
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
      // not kept, but it holds until the page is left
    }
    document.documentElement.dataset.theme = other;
    setTheme(other);
  };
  return (
    <button type="button" class="icon" onClick={change} title={`Use ${other} colours`} aria-label={`Use ${other} colours`}>
      {theme === "dark" ? "☀" : "☾"}
    </button>
  );
}
