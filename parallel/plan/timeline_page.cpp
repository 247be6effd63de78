// The page of timeline_html: markup, style and script around the data. Nothing is loaded from elsewhere.
#include "parallel/plan/timeline_files.h"

namespace mmt::plan {
namespace {

constexpr std::string_view kHead = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>mmtrain timeline</title>
<link rel="icon" href="data:,">
<style>
body { font: 13px/1.4 system-ui, sans-serif; margin: 16px 20px; color: #222; background: #fff; }
h1 { font-size: 18px; margin: 0 0 4px; }
h2 { font-size: 14px; margin: 18px 0 2px; }
h2 span { font-weight: normal; color: #555; margin-left: 10px; }
.note { color: #555; }
#bar { position: sticky; top: 0; background: #fff; padding: 8px 0; display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center; z-index: 1; }
#bar button { font: inherit; padding: 1px 9px; }
.key { display: inline-flex; align-items: center; gap: 4px; }
.key i { width: 12px; height: 12px; display: inline-block; border-radius: 2px; }
canvas { display: block; width: 100%; cursor: crosshair; }
#tip { position: fixed; display: none; pointer-events: none; background: #222; color: #fff; padding: 5px 8px; border-radius: 4px; white-space: pre; font-size: 12px; z-index: 2; }
table { border-collapse: collapse; margin-top: 6px; }
td, th { text-align: right; padding: 2px 10px; border-bottom: 1px solid #ddd; }
td:first-child, th:first-child { text-align: left; }
</style>
</head>
<body>
<h1 id="title"></h1>
<div id="notes"></div>
<div id="bar">
<span><button id="in" title="zoom in">+</button> <button id="out" title="zoom out">&minus;</button> <button id="all">whole step</button></span>
<label><input type="checkbox" id="memory" checked> memory</label>
<label><input type="checkbox" id="critical"> critical path</label>
<span id="keys"></span>
</div>
<main id="main"></main>
<div id="tip"></div>
<p class="note">Wheel zooms, dragging moves, double click shows the whole step. Gaps are waiting.</p>
<script type="application/json" id="data">)page";

constexpr std::string_view kTail = R"page(</script>
<script>
'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const colors = {LOAD: '#b9b9b9', F: '#4c78a8', R: '#b279a2', I: '#f58518', W: '#54a24b', B: '#e45756',
                SEND: '#9ecae9', RECV: '#ffd37f', TIE: '#83bcb6', RED: '#9d755d', OPT: '#439894'};
const names = {LOAD: 'load', F: 'forward', R: 'recompute', I: 'backward, input', W: 'backward, weights', B: 'backward',
               SEND: 'send', RECV: 'receive', TIE: 'tie', RED: 'reduce', OPT: 'optimizer'};
const by_id = id => document.getElementById(id);
const make = (tag, parent, text) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  parent.appendChild(e);
  return e;
};
const time_text = ns => ns >= 1e9 ? (ns / 1e9).toFixed(3) + ' s' : ns >= 1e6 ? (ns / 1e6).toFixed(3) + ' ms'
                      : ns >= 1e3 ? (ns / 1e3).toFixed(2) + ' us' : ns + ' ns';
const bytes_text = b => b >= 2 ** 30 ? (b / 2 ** 30).toFixed(2) + ' GiB' : b >= 2 ** 20 ? (b / 2 ** 20).toFixed(1) + ' MiB'
                      : b >= 2 ** 10 ? (b / 2 ** 10).toFixed(1) + ' KiB' : b + ' B';

document.title = data.title;
by_id('title').textContent = data.title;
for (const note of data.notes) make('div', by_id('notes'), note).className = 'note';

const longest = Math.max(1, ...data.timelines.map(t => t.makespan));
const left = 78, right = 10, axis = 20;
let view = {from: 0, to: longest};

// First index whose value is above x.
const above = (n, value, x) => {
  let low = 0, high = n;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (value(mid) > x) high = mid; else low = mid + 1;
  }
  return low;
};

const used = new Set();
const panels = data.timelines.map(t => {
  const section = make('section', by_id('main'));
  const peak = t.ranks.reduce((m, r) => Math.max(m, r.peak), 0);
  const head = make('h2', section, t.name);
  make('span', head, time_text(t.makespan) + ', bubble ' + (100 * t.bubble).toFixed(1) + ' %'
                     + (peak > 0 ? ', peak ' + bytes_text(peak) : ''));
  for (const r of t.ranks) for (const row of r.rows) used.add(row[0]);
  const canvas = make('canvas', section);
  const on_path = t.ranks.map(() => new Set());
  for (const [r, row] of t.critical) on_path[r].add(row);
  return {t, canvas, peak, on_path, path: t.critical.length > 0, lane: t.ranks.length > 32 ? 12 : 20,
          strip: t.ranks.length > 32 ? 10 : 18};
});
data.kinds.forEach((kind, i) => {
  if (!used.has(i)) return;
  const key = make('span', by_id('keys'));
  key.className = 'key';
  key.style.marginRight = '10px';
  make('i', key).style.background = colors[kind];
  make('span', key, names[kind]);
});
if (!panels.some(p => p.path)) by_id('critical').parentNode.remove();
if (!panels.some(p => p.peak > 0)) by_id('memory').parentNode.remove();

const shown = id => { const e = by_id(id); return e !== null && e.checked; };
const step_of = p => p.lane + (shown('memory') && p.peak > 0 ? p.strip : 0) + 4;

function draw_axis(g, width) {
  const span = view.to - view.from;
  let tick = 10 ** Math.floor(Math.log10(span / 4));
  for (const m of [5, 2.5, 2]) if (span / (tick * m) >= 4) { tick *= m; break; }
  g.fillStyle = '#666';
  g.strokeStyle = '#e3e3e3';
  g.textAlign = 'center';
  for (let at = Math.ceil(view.from / tick) * tick; at <= view.to; at += tick) {
    const x = left + (at - view.from) / span * (width - left - right);
    g.beginPath();
    g.moveTo(x, axis - 4);
    g.lineTo(x, g.canvas.clientHeight);
    g.stroke();
    g.fillText(time_text(Math.round(at)).replace(/(\.\d*?)0+ /, '$1 ').replace('. ', ' '), x, axis - 12);
  }
}

function draw_lane(g, p, index, y, width) {
  const r = p.t.ranks[index], rows = r.rows, span = view.to - view.from, scale = (width - left - right) / span;
  const x_of = time => left + (time - view.from) * scale;
  g.fillStyle = '#333';
  g.textAlign = 'left';
  const share = p.t.makespan > 0 ? Math.round(100 * r.busy / p.t.makespan) : 0;
  g.fillText('rank ' + r.rank + '  ' + share + '%', 0, y + p.lane / 2);
  g.fillStyle = '#f3f3f3';
  g.fillRect(left, y, x_of(Math.min(view.to, p.t.makespan)) - left, p.lane);
  g.save();
  g.beginPath();
  g.rect(left, y - 1, width - left - right, p.lane + p.strip + 4);
  g.clip();
  let pixel = -1;
  const path = shown('critical') ? p.on_path[index] : null;
  for (let i = above(rows.length, k => rows[k][3], view.from); i < rows.length && rows[i][2] <= view.to; ++i) {
    const row = rows[i], x = x_of(row[2]), w = (row[3] - row[2]) * scale;
    if (w < 1) {  // at most one stroke a pixel
      if (row[3] > row[2] && Math.floor(x) > pixel) {
        pixel = Math.floor(x);
        g.fillStyle = colors[data.kinds[row[0]]];
        g.fillRect(pixel, y, 1, p.lane);
      }
      continue;
    }
    g.fillStyle = colors[data.kinds[row[0]]];
    g.fillRect(x, y, w > 3 ? w - 0.5 : w, p.lane);
    if (path !== null && path.has(i)) {
      g.fillStyle = '#000';
      g.fillRect(x, y + p.lane - 3, w, 3);
    }
    if (w > 9 * row[1].length && p.lane > 14) {
      g.fillStyle = row[0] === 6 || row[0] === 7 || row[0] === 0 ? '#222' : '#fff';
      g.textAlign = 'center';
      g.fillText(row[1], x + w / 2, y + p.lane / 2);
    }
  }
  if (shown('memory') && p.peak > 0 && r.memory.length > 0) {
    const base = y + p.lane + p.strip, points = r.memory, high = b => base - b / p.peak * (p.strip - 2);
    const first = Math.max(0, above(points.length, k => points[k][0], view.from) - 1);
    g.beginPath();
    g.moveTo(left, base);
    g.lineTo(left, high(points[first][1]));
    for (let i = first; i < points.length && points[i][0] <= view.to; ++i) {
      const x = x_of(points[i][0]);
      g.lineTo(x, high(points[Math.max(0, i - 1)][1]));
      g.lineTo(x, high(points[i][1]));
    }
    const end = x_of(Math.min(view.to, p.t.makespan)), last = above(points.length, k => points[k][0], view.to) - 1;
    g.lineTo(end, high(points[Math.max(0, last)][1]));
    g.lineTo(end, base);
    g.fillStyle = '#d5dce6';
    g.fill();
  }
  g.restore();
}

function draw() {
  for (const p of panels) {
    const step = step_of(p), height = axis + step * p.t.ranks.length, density = window.devicePixelRatio || 1;
    p.canvas.style.height = height + 'px';
    const width = p.canvas.clientWidth;
    p.canvas.width = Math.round(width * density);
    p.canvas.height = Math.round(height * density);
    const g = p.canvas.getContext('2d');
    g.scale(density, density);
    g.font = '11px system-ui, sans-serif';
    g.textBaseline = 'middle';
    draw_axis(g, width);
    p.t.ranks.forEach((r, i) => draw_lane(g, p, i, axis + i * step, width));
  }
  document.body.dataset.drawn = panels.reduce((n, p) => n + p.t.ranks.reduce((m, r) => m + r.rows.length, 0), 0);
}

let waiting = false;
const redraw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
};
function show(from, to) {
  const span = Math.min(longest, Math.max(10, to - from));
  from = Math.min(Math.max(0, from), longest - span);
  view = {from, to: from + span};
  redraw();
}
const zoom = (factor, at) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);
const middle = () => (view.from + view.to) / 2;
by_id('in').onclick = () => zoom(0.5, middle());
by_id('out').onclick = () => zoom(2, middle());
by_id('all').onclick = () => show(0, longest);
for (const id of ['memory', 'critical']) if (by_id(id) !== null) by_id(id).onchange = redraw;

const tip = by_id('tip');
function hover(p, event) {
  const box = p.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const index = Math.floor((y - axis) / step_of(p));
  tip.style.display = 'none';
  if (index < 0 || index >= p.t.ranks.length || x < left) return;
  const r = p.t.ranks[index], time = view.from + (x - left) / (box.width - left - right) * (view.to - view.from);
  if (time > p.t.makespan) return;
  const i = above(r.rows.length, k => r.rows[k][3], time), row = r.rows[i];
  let text = 'rank ' + r.rank + '\n';
  if (row !== undefined && row[2] <= time) {
    const stage = data.stages[row[4]];
    text += row[1] + '  ' + names[data.kinds[row[0]]] + '\n' + (stage === undefined ? 'stage ' + row[4] : stage)
          + '\nstart ' + time_text(row[2]) + '\ntakes ' + time_text(row[3] - row[2]);
  } else {
    text += 'waits' + (row === undefined ? '' : ' before ' + row[1]) + '\nat ' + time_text(Math.round(time));
  }
  if (r.memory.length > 0) {
    text += '\nmemory ' + bytes_text(r.memory[Math.max(0, above(r.memory.length, k => r.memory[k][0], time) - 1)][1])
          + ' (peak ' + bytes_text(r.peak) + ')';
  }
  tip.textContent = text;
  tip.style.display = 'block';
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + 'px';
  tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + 'px';
}
let drag = null;
for (const p of panels) {
  const scale = () => (view.to - view.from) / (p.canvas.clientWidth - left - right);
  p.canvas.addEventListener('wheel', event => {
    event.preventDefault();
    const x = event.clientX - p.canvas.getBoundingClientRect().left;
    zoom(event.deltaY > 0 ? 1.25 : 0.8, view.from + (x - left) * scale());
  }, {passive: false});
  p.canvas.addEventListener('mousedown', event => { drag = {x: event.clientX, from: view.from, to: view.to, scale: scale()}; });
  p.canvas.addEventListener('mousemove', event => hover(p, event));
  p.canvas.addEventListener('mouseleave', () => { tip.style.display = 'none'; });
  p.canvas.addEventListener('dblclick', () => show(0, longest));
}
window.addEventListener('mousemove', event => {
  if (drag === null) return;
  const by = (drag.x - event.clientX) * drag.scale;
  show(drag.from + by, drag.to + by);
});
window.addEventListener('mouseup', () => { drag = null; });
window.addEventListener('resize', redraw);

if (data.errors.length > 0) {
  make('h2', by_id('main'), 'Predicted and measured, by action');
  const table = make('table', by_id('main')), head = make('tr', table);
  for (const text of ['action', 'stage', 'count', 'predicted', 'measured', 'error', 'worst of one']) make('th', head, text);
  for (const e of data.errors) {
    const row = make('tr', table);
    const error = e.predicted > 0 ? (100 * (e.measured - e.predicted) / e.predicted).toFixed(1) + ' %' : '';
    for (const text of [names[data.kinds[e.kind]], data.stages[e.stage] === undefined ? e.stage : data.stages[e.stage], e.count,
                        time_text(e.predicted), time_text(e.measured), error, time_text(e.worst)]) make('td', row, text);
  }
}
draw();
})();
</script>
</body>
</html>
)page";

}  // namespace

std::string timeline_html(const TimelinePage& page) {
  std::string text(kHead);
  text += timeline_json(page);
  text += kTail;
  return text;
}

}  // namespace mmt::plan
