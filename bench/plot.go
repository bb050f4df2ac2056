package main

import (
	"fmt"
	"image/color"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Size of a plot.
const (
	plotWidth  = 16 * vg.Centimeter
	plotHeight = 10 * vg.Centimeter
)

// draw writes the plots and returns their names.
func (r *report) draw(folder string) ([]string, error) {
	var names []string
	for _, d := range []struct{ name, workload, c string }{
		{"cycle-1.svg", workCycle, workersCase(1)},
		{"cycle-64.svg", workCycle, workersCase(64)},
		{"cycle-256.svg", workCycle, workersCase(256)},
		{"contended.svg", workContended, ""},
		{"hand-over-1.svg", workHandOver, waitersCase(1)},
		{"hand-over-100.svg", workHandOver, waitersCase(100)},
	} {
		var lines []line
		for _, c := range r.Curves {
			if c.Workload == d.workload && c.Case == d.c {
				lines = append(lines, distribution(c))
			}
		}
		if len(lines) == 0 {
			continue
		}
		p := newPlot(strings.TrimSuffix(d.workload+", "+d.c, ", "), "latency, µs", "share of operations, %")
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		if err := save(p, lines, filepath.Join(folder, d.name)); err != nil {
			return nil, err
		}
		names = append(names, d.name)
	}
	grown, err := r.drawGrowth(folder)
	return append(names, grown...), err
}

// line is one line of a plot.
type line struct {
	name   string
	points plotter.XYs
}

func distribution(c Curve) line {
	l := line{name: c.Peer}
	for i, v := range c.Quantiles {
		l.points = append(l.points, plotter.XY{X: max(v, 1), Y: (float64(i) + 0.5) * 100 / float64(len(c.Quantiles))})
	}
	return l
}

// drawGrowth draws each growth relative to its first step.
func (r *report) drawGrowth(folder string) ([]string, error) {
	var lines []line
	for _, g := range growths(r.results) {
		l := line{name: g.name}
		for i, ratio := range g.relative(r.results) {
			l.points = append(l.points, plotter.XY{X: g.counts[i], Y: ratio})
		}
		lines = append(lines, l)
	}
	if len(lines) == 0 {
		return nil, nil
	}
	p := newPlot("growth", "how many", "relative to one")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 2
	return []string{"growth.svg"}, save(p, lines, filepath.Join(folder, "growth.svg"))
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.BackgroundColor = color.White
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.TextStyle.Font.Size = vg.Points(8)
	p.Add(plotter.NewGrid())
	return p
}

func save(p *plot.Plot, lines []line, file string) error {
	for i, l := range lines {
		drawn, err := plotter.NewLine(l.points)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, l.name, err)
		}
		drawn.Color, drawn.Width = colorOf(l.name, i), vg.Points(1.5)
		if ours(l.name) {
			drawn.Width = vg.Points(2.5)
		}
		p.Add(drawn)
		p.Legend.Add(l.name, drawn)
	}
	return p.Save(plotWidth, plotHeight, file)
}

// ours reports whether a peer is pglock.
func ours(name string) bool { return strings.HasPrefix(name, "pglock") }

// colorOf keeps a peer's color over all plots.
func colorOf(name string, i int) color.Color {
	colors := []color.Color{
		color.Black,
		color.RGBA{0x9e, 0xca, 0xe1, 0xff},
		color.RGBA{0x42, 0x92, 0xc6, 0xff},
		color.RGBA{0x08, 0x45, 0x94, 0xff},
		color.RGBA{0xfd, 0xae, 0x6b, 0xff},
		color.RGBA{0xe6, 0x55, 0x0d, 0xff},
		color.RGBA{0xa1, 0xd9, 0x9b, 0xff},
		color.RGBA{0x31, 0xa3, 0x54, 0xff},
		color.RGBA{0x00, 0x6d, 0x2c, 0xff},
		color.RGBA{0x75, 0x6b, 0xb1, 0xff},
	}
	for n, p := range peers() {
		if p.name == name {
			i = n
		}
	}
	return colors[i%len(colors)]
}
