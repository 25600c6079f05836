"use strict";
(() => {
  const element = (id) => document.getElementById(id);
  const unpack = async (id) => {
    const response = await fetch("data:application/octet-stream;base64," + element(id).textContent.trim());
    return new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  };

  // Figures: plotly's JSON, one a line. Each is parsed whenever it is drawn, because drawing changes what it gets.
  let figures;
  // Settings of plotly; a page without figures has none.
  const settings = JSON.parse(element("settings")?.textContent ?? "{}");

  // A sheet of A4 between its margins, in pixels. Figures on it are smaller than on the screen: by USUALLY, or by more until
  // they have half its height and all of its width, but their type stays legible.
  const SHEET = { width: 700, height: 1000 }, USUALLY = 0.8, LEAST = 0.55;
  let onPaper = false;
  // The colours of the page, light or dark.
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, ticks: "", title: { standoff: 8 } };
    const clear = "rgba(0,0,0,0)", soft = style.getPropertyValue("--soft").trim();
    const modebar = { bgcolor: clear, color: soft, activecolor: ink };
    return { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: ink }, modebar, xaxis: axis, yaxis: axis };
  };
  // A title broken into lines that fit. Its own breaks and marks stay; details, between <sup> and </sup>, are smaller.
  const letters = (text) => text.replace(/<[^>]*>/g, "").replace(/&#?\w+;/g, "x").length;
  const wrap = (text, most) => text.split("<br>").map((part) => {
    const room = part.startsWith("<sup>") ? most * 1.4 : most, lines = [""];
    for (const word of part.replace(/<\/?sup>/g, "").split(" ")) {
      if (lines.at(-1) && letters(lines.at(-1)) + letters(word) > room) lines.push(word);
      else lines[lines.length - 1] += (lines.at(-1) && " ") + word;
    }
    return lines.map((line) => (part.startsWith("<sup>") ? `<sup>${line}</sup>` : line)).join("<br>");
  }).join("<br>");
  // Pixels: a line of a legend, and an entry beside its name; around the panels, at their sides; and a colour bar.
  const ENTRY = { height: 29, width: 50 }, BESIDE = 110, BAR = 70, USUAL = 450, LETTER = 6.6, AXIS_LETTER = 7.8;
  // The height that a legend below the panels needs. plotly would shrink the panels, and show at most half a figure of it.
  const legendHeight = (data, layout, width) => {
    if (layout.legend?.orientation !== "h" || !layout.showlegend) return 0;
    const names = data.filter(({ name, showlegend }) => name && showlegend !== false).map(({ name }) => name);
    const longest = Math.max(0, ...names.map(letters)) * LETTER + ENTRY.width;
    return ENTRY.height * Math.ceil(names.length / Math.max(Math.floor((width - BESIDE) / longest), 1));
  };
  // The height that a figure of this width needs.
  const measureHeight = (data, layout, width) => {
    const legend = legendHeight(data, layout, width);
    return Math.max((layout.height || USUAL) + Math.max(legend - ENTRY.height, 0), 2 * legend);
  };
  // The width that panels beside each other need, with their titles.
  const panelsWidth = (layout) => {
    const axes = Object.keys(layout).filter((key) => /^xaxis/.test(key)).map((key) => String(layout[key].domain));
    const columns = new Set(axes).size;
    const titles = (layout.annotations ?? []).filter(({ xref, yref }) => xref === "paper" && yref === "paper");
    const longest = Math.max(0, ...titles.map(({ text }) => letters(text)));
    return columns > 2 ? columns * Math.max(150, longest * LETTER + 10) + BESIDE : 0;
  };
  // Dark colours would be invisible on black: a share of white makes them as light as they must be.
  const lighten = (colour) => {
    if (!/^#[0-9a-f]{6}$/i.test(colour)) return colour;
    const levels = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const light = (0.3 * levels[0] + 0.59 * levels[1] + 0.11 * levels[2]) / 255;
    if (light >= 0.45) return colour;
    const white = (0.45 - light) / (1 - light);
    return "#" + levels.map((level) => Math.round(level + (255 - level) * white).toString(16).padStart(2, "0")).join("");
  };
  // Maps on a dark page: light colours become dark, on the page's ground, and dark ones light, of the same hues.
  const reverse = (colour, paper) => {
    const [levels, ground] = [colour, paper].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    const sum = Math.max(...levels) + Math.min(...levels);
    const reversed = levels.map((level, at) => ground[at] + (255 - sum + level) * (255 - ground[at]) / 255);
    return "#" + reversed.map((level) => Math.round(level).toString(16).padStart(2, "0")).join("");
  };
  const passesWhite = (scale) => Array.isArray(scale) && scale.some(([, colour]) => colour.toLowerCase() === "#ffffff");
  const drawn = new Map();
  const draw = async (chart) => {
    const number = Number(chart.dataset.figure);
    if (drawn.get(chart) === number) return;
    drawn.set(chart, number);
    const { data, layout } = JSON.parse(figures[number]);
    const narrow = !onPaper && chart.clientWidth < 600;
    // Faint points would be invisible on black.
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper").trim(), dark = paper !== "#fff";
    for (const { marker, line } of dark ? data : []) {
      if (marker?.opacity) marker.opacity = Math.min(1, marker.opacity * 1.6);
      for (const part of [marker, line]) if (part?.color) part.color = lighten(part.color);
    }
    const axes = Object.keys(layout).filter((key) => /^coloraxis/.test(key)).map((key) => layout[key]);
    for (const part of dark ? [...data, ...axes] : []) {
      if (passesWhite(part.colorscale)) part.colorscale = part.colorscale.map(([at, colour]) => [at, reverse(colour, paper)]);
    }
    if (dark && /^#[0-9a-f]{6}$/i.test(layout.plot_bgcolor)) layout.plot_bgcolor = reverse(layout.plot_bgcolor, paper);
    layout.template = { layout: colours() };
    for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) layout.template.layout[key] = colours().xaxis;
    const size = narrow ? 12 : 16;
    if (narrow) {
      layout.legend = { ...layout.legend, orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, xanchor: "left" };
      if (layout.coloraxis) layout.coloraxis.colorbar = { ...layout.coloraxis.colorbar, thickness: 10 };
    }
    const panels = panelsWidth(layout);
    let width = Math.max(chart.clientWidth, panels), height = measureHeight(data, layout, width), scale = 1;
    if (onPaper) {
      width = Math.max(SHEET.width / USUALLY, panels);
      height = measureHeight(data, layout, width);
      scale = Math.min(SHEET.width / width, Math.max(SHEET.height / 2 / height, LEAST), SHEET.height / height);
      width = SHEET.width / scale;
    }
    const text = wrap(layout.title.text, (onPaper ? width : chart.clientWidth) / (0.56 * size));
    const lines = text === "" ? 0 : text.split("<br>").length;
    layout.title = {
      text, font: { size }, x: 0, xref: "container", xanchor: "left", y: 1, yanchor: "top",
      pad: { t: lines > 1 ? 22 : 12, l: 4 }, // several lines start higher than one
    };
    const top = layout.margin?.t ?? 70, titles = Math.max(top - 70, 0); // titles of panels are below the figure's
    layout.margin = { ...layout.margin, t: Math.max(top, 24 + 1.35 * size * lines + titles) };
    // Where the screen is narrower than the panels, the figure scrolls.
    if (onPaper || width > chart.clientWidth) layout.width = width;
    if (narrow) layout.margin = { ...layout.margin, l: 40, r: 10 };
    // The title of an axis is no wider than its panel, also beside a colour bar.
    const across = narrow ? Object.keys(layout).filter((key) => /^xaxis/.test(key)) : [];
    for (const { title, domain = [0, 1] } of across.map((key) => layout[key])) {
      if (title?.text) title.text = wrap(title.text, (width - BESIDE - BAR) * (domain[1] - domain[0]) / AXIS_LETTER);
    }
    layout.height = height;
    // On a small screen the tool bar would cover the title; touch gestures replace it.
    const bar = narrow || onPaper ? false : "hover";
    const done = Plotly.react(chart, data, { ...layout, autosize: !onPaper }, { ...settings, responsive: !onPaper, displayModeBar: bar });
    // A print does not wait for what comes after this function's first await.
    chart.style.minHeight = layout.height * scale + "px";
    chart.style.height = onPaper ? chart.style.minHeight : "";
    chart.querySelector(".plot-container").style.transform = onPaper ? `scale(${scale})` : "";
    await done;
    chart.dataset.drawn = "yes";
    tell();
  };
  const redraw = () => { const charts = [...drawn.keys()]; drawn.clear(); charts.forEach(draw); };

  const prepareFigures = async () => {
    const charts = [...document.querySelectorAll(".chart")];
    if (!charts.length) return;
    const [script, packed] = await Promise.all([unpack("plotly"), unpack("figures")]);
    await new Promise((resolve, reject) => {
      const tag = document.createElement("script");
      tag.src = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      tag.onload = resolve; tag.onerror = () => reject(new Error("plotly.js did not load"));
      document.head.append(tag);
    });
    figures = new TextDecoder().decode(packed).split("\n");
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
    }, { rootMargin: "400px" });
    charts.forEach((chart) => seen.observe(chart));
    const menus = [...document.querySelectorAll("select[data-chart]")];
    for (const select of menus) {
      select.addEventListener("change", () => {
        const chart = element(select.dataset.chart);
        chart.dataset.figure = select.value;
        draw(chart);
      });
    }
    // A sheet has no menu: each of the figures that one chooses from stands there, with its name.
    const spread = (select) => {
      const chart = element(select.dataset.chart), first = chart.closest("figure");
      if (first.querySelector(".of")) return; // the reader changes a setting of the print
      const figures = [...select.options].map((option, at) => {
        const figure = at === 0 ? first : first.cloneNode(true);
        if (at > 0) {
          const drawing = document.createElement("div");
          drawing.className = "chart";
          drawing.role = "img";
          drawing.ariaLabel = chart.ariaLabel;
          figure.className = "part";
          figure.querySelector(".pick").remove();
          figure.querySelector(".chart").replaceWith(drawing);
        }
        figure.querySelector(".chart").dataset.figure = option.value;
        return figure;
      });
      first.after(...figures.slice(1));
      figures.forEach((figure, at) => {
        const name = document.createElement("strong");
        name.className = "of";
        name.textContent = select.options[at].text + ": ";
        figure.querySelector("figcaption").prepend(name);
      });
    };
    // On paper are all figures, also those that were never on the screen, in the light colours, as wide as the sheet.
    let onScreen = [];
    addEventListener("beforeprint", () => {
      if (!onPaper) onScreen = [...drawn.keys()];
      onPaper = true;
      show("light");
      drawn.clear();
      menus.forEach(spread);
      document.querySelectorAll(".chart").forEach(draw);
    });
    addEventListener("afterprint", () => {
      onPaper = false;
      show(theme);
      drawn.clear();
      for (const added of document.querySelectorAll("figure.part, figcaption .of")) {
        if (added.matches("figure")) Plotly.purge(added.querySelector(".chart"));
        added.remove();
      }
      for (const select of menus) element(select.dataset.chart).dataset.figure = select.value;
      for (const chart of charts) {
        if (onScreen.includes(chart)) draw(chart);
        else { Plotly.purge(chart); chart.removeAttribute("style"); delete chart.dataset.drawn; }
      }
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    document.documentElement.dataset.ready = "yes";
  };

  // Tables and figures that scroll say so.
  const tell = () => {
    for (const hint of document.querySelectorAll(".scrolls")) {
      const region = hint.previousElementSibling, what = region.matches(".chart") ? "figure" : "table";
      const across = region.scrollWidth > region.clientWidth + 1, down = region.scrollHeight > region.clientHeight + 1;
      const more = what === "figure" ? "panels" : "columns";
      hint.textContent = `Scroll the ${what} ` + (across && down ? "down for more rows and to the right for more columns."
        : across ? `to the right for more ${more}.` : "down for more rows.");
      hint.hidden = !across && !(down && what === "table");
    }
  };
  tell();
  addEventListener("resize", tell);

  // On paper, a table that is wider than the sheet becomes several, which begin with the columns that name a row.
  addEventListener("beforeprint", () => {
    for (const table of document.querySelectorAll("table[data-starts]:not(.split, .part)")) {
      const names = Number(table.dataset.names), starts = table.dataset.starts.split(" ").map(Number);
      table.classList.add("split");
      starts.forEach((start, at) => {
        const part = table.cloneNode(true), end = starts[at + 1] ?? Infinity;
        part.className = "part";
        part.caption.append(` (part ${at + 1} of ${starts.length})`);
        for (const row of part.rows) {
          [...row.cells].forEach((cell, place) => { if (place >= names && (place < start || place >= end)) cell.remove(); });
        }
        table.before(part);
      });
    }
  });
  addEventListener("afterprint", () => {
    for (const part of document.querySelectorAll("table.part")) part.remove();
    for (const table of document.querySelectorAll("table.split")) table.classList.remove("split");
  });

  // Tables: a click on a heading sorts. Numbers are compared as numbers; missing values come last.
  const readCell = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = Number(text.replaceAll(",", "").replace("−", "-"));
    return text === "" ? null : Number.isNaN(number) ? text.toLowerCase() : number;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th"), body = head.closest("table").tBodies[0];
      const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", way === 1 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [readCell(row, head.cellIndex), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : way * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    });
  }

  // Light and dark.
  const themes = ["auto", "light", "dark"], button = element("theme");
  const storage = { get() { try { return localStorage.getItem("theme"); } catch { return null; } },
                 set(theme) { try { localStorage.setItem("theme", theme); } catch { /* a browser may refuse storage to a page from a file */ } } };
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
    button.textContent = "Theme: " + theme;
  };
  let theme = themes.includes(storage.get()) ? storage.get() : "auto";
  show(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    storage.set(theme); show(theme); redraw();
  });

  let preparing = true;
  prepareFigures().catch((error) => {
    console.error(error);
    for (const chart of document.querySelectorAll(".chart")) chart.textContent = "This figure could not be drawn. Its numbers are in the folder tables.";
  }).finally(() => { preparing = false; });
  // The window's load event waits for pictures, and each begins the next until figures can be drawn: a program that prints
  // the page as soon as it is loaded has them, too.
  const wait = (count) => {
    if (!preparing) return;
    const picture = new Image();
    picture.onload = picture.onerror = () => wait(count + 1);
    picture.src = `data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg" id="n${count}"/>`;
  };
  wait(0);
})();
