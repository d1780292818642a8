import { parseArgs } from 'node:util'
import { benchCold } from './cold'
import { prepareMachine } from './machine'
import { benchPages } from './pages'
import { benchPaid } from './paid'
import * as Report from './Report'
import { benchUnpaid } from './unpaid'

const sections = { unpaid: benchUnpaid, paid: benchPaid, cold: benchCold, pages: benchPages }
type Section = keyof typeof sections

const { values } = parseArgs({ options: { only: { type: 'string' } } })
const names = Object.keys(sections) as Section[]
const chosen = names.filter((name) => values.only === undefined || values.only === name)
if (chosen.length === 0) {
  process.stderr.write(`bench: --only takes one of ${names.join(', ')}\n`)
  process.exit(2)
}

const machine = prepareMachine()
const rows: Report.Row[] = []
const notes = [
  `Bun ${Bun.version}, ${machine.description}. Ratios are ours / against within one round, median [min..max];`,
  'absolute figures are medians over the rounds. Rounds alternate the order of the candidates.',
]
for (const name of chosen) {
  process.stderr.write(`bench: ${name} ...\n`)
  const section = await sections[name](machine)
  rows.push(...section.rows)
  notes.push(...section.notes)
}
const { repeated, kept } = machine.disturbances()
if (repeated > 0) notes.push(`Other programs disturbed samples: ${repeated} were taken again.`)
if (kept > 0)
  notes.push(`${kept} SAMPLES ARE DISTURBED: quote nothing of this, run it on a quiet machine.`)
process.stdout.write(`\n${[...Report.format(rows), '', ...notes].join('\n')}\n`)
process.exit(0)
