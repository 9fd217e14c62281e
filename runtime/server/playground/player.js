// The controls of a timeline: play, speed, a slider over the steps.

const MILLISECONDS = 160; // per step at normal speed

export class Player {
  constructor(element, show) {
    this.show = show; // called with the number of steps to show
    this.button = element.querySelector(".play");
    this.slider = element.querySelector(".steps");
    this.speed = element.querySelector(".speed");
    this.label = element.querySelector(".at");
    this.timer = null;
    this.button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.slider.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.slider.value));
    });
    this.speed.addEventListener("change", () => {
      if (this.timer) this.#schedule();
    });
  }

  set(count, length) {
    this.slider.max = length;
    this.slider.value = count;
    this.slider.disabled = this.button.disabled = length === 0;
    this.slider.setAttribute("aria-valuetext", `step ${count} of ${length}`);
    this.label.textContent = length ? `step ${count} of ${length}` : "";
  }

  play() {
    if (!Number(this.slider.max)) return;
    if (this.slider.value === this.slider.max) this.show(0);
    this.button.textContent = "Pause";
    this.#schedule();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
  }

  #schedule() {
    clearInterval(this.timer);
    this.timer = setInterval(() => {
      const next = Number(this.slider.value) + 1;
      if (next > Number(this.slider.max)) this.pause();
      else this.show(next);
      if (next >= Number(this.slider.max)) this.pause();
    }, MILLISECONDS / Number(this.speed.value));
  }
}
