/** Label values by name. They are public: never a secret, a buyer's address or an RPC URL. */
export type Labels = Readonly<Record<string, string>>
export type Counter = { inc(labels?: Labels, by?: number): void }
export type Registry = ReturnType<typeof createRegistry>

/** A registered metric with its full name. */
export type Family = {
  name: string
  type: 'counter' | 'gauge' | 'histogram'
  help: string
  labels: readonly string[]
}

type Update = () => void | Promise<void>

// Clients choose some label values, so the number of series is limited.
const seriesMax = 1000

/**
 * An empty registry. The prefix `turnpike_` is added to each name, which can be registered once.
 */
export function createRegistry() {
  const families = new Map<string, Family & { lines: () => string[] }>()
  const updates: Update[] = []
  const register = ({ name, help, type, labels }: Family, samples: (full: string) => string[]) => {
    const full = `turnpike_${name}`
    if (!/^[a-z][a-z\d_]*$/.test(name)) throw new Error(`not a metric name: ${name}`)
    if (families.has(full)) throw new Error(`metric registered twice: ${name}`)
    const head = [`# HELP ${full} ${escapeText(help)}`, `# TYPE ${full} ${type}`]
    const lines = () => [...head, ...samples(full)]
    families.set(full, { name: full, type, help, labels, lines })
  }
  const scalar = (family: Family) => {
    const series = createSeries(family.labels, () => ({ value: 0 }))
    register(family, (full) =>
      series.entries().map(([labels, state]) => `${full}${braces(labels)} ${state.value}`),
    )
    return series
  }
  return {
    counter(name: string, help: string, labels: readonly string[] = []): Counter {
      const series = scalar({ name, help, type: 'counter', labels })
      return {
        inc(values, by = 1) {
          series.at(values).value += by
        },
      }
    },
    gauge(name: string, help: string, labels: readonly string[] = []) {
      const series = scalar({ name, help, type: 'gauge', labels })
      return {
        set(value: number, values?: Labels): void {
          series.at(values).value = value
        },
      }
    },
    /** `buckets`: upper bounds, ascending, without infinity. */
    histogram(name: string, help: string, buckets: readonly number[], labels: readonly string[]) {
      const series = createSeries(labels, () => ({
        counts: new Array<number>(buckets.length + 1).fill(0),
        sum: 0,
      }))
      register({ name, help, type: 'histogram', labels }, (full) =>
        series.entries().flatMap(([values, state]) => histogramLines(full, values, buckets, state)),
      )
      return {
        observe(value: number, values?: Labels): void {
          const state = series.at(values)
          const found = buckets.findIndex((bound) => value <= bound)
          const index = found < 0 ? buckets.length : found
          state.counts[index] = (state.counts[index] ?? 0) + 1
          state.sum += value
        },
      }
    },
    /** Called before each rendering, to set gauges from values that other modules store. */
    onRender: (update: Update) => void updates.push(update),
    /** Prometheus text exposition format 0.0.4. */
    async render() {
      for (const update of updates) await update()
      return `${[...families.values()].flatMap(({ lines }) => lines()).join('\n')}\n`
    },
    /** What is registered, in the order of the names. */
    describe: (): Family[] =>
      [...families.values()]
        .map(({ lines: _, ...family }) => family)
        .toSorted((a, b) => (a.name < b.name ? -1 : 1)),
  }
}

/** `GET /metrics` of a registry. */
export async function renderMetrics(registry: Registry): Promise<Response> {
  return new Response(await registry.render(), {
    headers: {
      'Content-Type': 'text/plain; version=0.0.4; charset=utf-8',
      'Cache-Control': 'no-store',
    },
  })
}

function createSeries<State>(names: readonly string[], create: () => State) {
  const states = new Map<string, { labels: string; state: State }>()
  const add = (key: string, values: readonly string[]) => {
    const labels = names.map((name, index) => `${name}="${escapeLabel(values[index] ?? '')}"`)
    const entry = { labels: labels.join(','), state: create() }
    states.set(key, entry)
    return entry
  }
  if (names.length === 0) add('', [])
  return {
    at(labels: Labels = {}): State {
      const values = names.map((name) => labels[name] ?? '')
      const key = values.join('\0')
      const known = states.get(key)
      if (known) return known.state
      if (states.size < seriesMax) return add(key, values).state
      const others = names.map(() => 'other')
      return (states.get('other') ?? add('other', others)).state
    },
    entries: (): [string, State][] =>
      [...states.values()].map((entry) => [entry.labels, entry.state]),
  }
}

function histogramLines(
  name: string,
  labels: string,
  buckets: readonly number[],
  state: { counts: readonly number[]; sum: number },
): string[] {
  const comma = labels ? ',' : ''
  let total = 0
  const lines = [...buckets, '+Inf'].map((bound, index) => {
    total += state.counts[index] ?? 0
    return `${name}_bucket{${labels}${comma}le="${bound}"} ${total}`
  })
  return [
    ...lines,
    `${name}_sum${braces(labels)} ${state.sum}`,
    `${name}_count${braces(labels)} ${total}`,
  ]
}

function braces(labels: string): string {
  return labels ? `{${labels}}` : ''
}

function escapeText(text: string): string {
  return text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')
}

function escapeLabel(text: string): string {
  return escapeText(text).replaceAll('"', '\\"')
}
