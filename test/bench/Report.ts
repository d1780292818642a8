import * as Stats from './Stats'

/** One comparison: the measurement of ours, the other one, and the result. */
export type Row = {
  what: string
  against: string
  ratio: Stats.Summary | undefined
  /** As printed, such as `>= 0.5`; empty without a target. */
  target: string
  met: boolean | undefined
  ours: string
  theirs: string
}

export type Bound = { atLeast: number } | { atMost: number }

/** Compares two series that were measured in the same rounds. */
export function compare(options: {
  what: string
  against: string
  ours: readonly number[]
  theirs: readonly number[]
  bound?: Bound
  format: (value: number) => string
}): Row {
  const { what, against, ours, theirs, bound, format } = options
  const ratio = Stats.ratios(ours, theirs)
  return {
    what,
    against,
    ratio,
    ...evaluate(ratio.median, bound),
    ours: format(Stats.median(ours)),
    theirs: format(Stats.median(theirs)),
  }
}

/** The target as text, and whether a value meets it. */
export function evaluate(value: number, bound?: Bound): Pick<Row, 'target' | 'met'> {
  if (bound === undefined) return { target: '', met: undefined }
  if ('atLeast' in bound) return { target: `>= ${bound.atLeast}`, met: value >= bound.atLeast }
  return { target: `<= ${bound.atMost}`, met: value <= bound.atMost }
}

/** Lines of a table with columns of the needed width. */
export function format(rows: readonly Row[]): string[] {
  const cells = rows.map((row) => [
    row.what,
    row.against,
    row.ratio === undefined ? '' : span(row.ratio),
    row.target,
    row.met === undefined ? '' : row.met ? 'met' : 'MISSED',
    row.ours,
    row.theirs,
  ])
  const table = [['ours', 'against', 'ratio', 'target', '', 'ours', 'against'], ...cells]
  const widths = table[0]?.map((_, column) =>
    Math.max(...table.map((line) => line[column]?.length ?? 0)),
  )
  return table.map((line) =>
    line
      .map((cell, column) => cell.padEnd(widths?.[column] ?? 0))
      .join('  ')
      .trimEnd(),
  )
}

function span({ median, min, max }: Stats.Summary): string {
  return `${median.toFixed(2)} [${min.toFixed(2)}..${max.toFixed(2)}]`
}
