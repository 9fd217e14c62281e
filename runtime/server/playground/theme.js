// Light or dark: as the system has it until the user chooses.

const root = document.documentElement;

function current() {
  return root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function show(button) {
  const other = current() === "dark" ? "light" : "dark";
  button.textContent = other === "dark" ? "Dark" : "Light";
  button.setAttribute("aria-label", `use the ${other} theme`);
}

export function themed(button) {
  if (localStorage.theme) root.dataset.theme = localStorage.theme;
  show(button);
  button.addEventListener("click", () => {
    root.dataset.theme = localStorage.theme = current() === "dark" ? "light" : "dark";
    show(button);
  });
}
