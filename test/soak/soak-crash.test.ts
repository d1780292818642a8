import { expect, test } from 'bun:test'
import { join } from 'node:path'

/** Kills at any instant, during the start, before a charge is settled, and during a delivery. */
const chosen = ['--kills', '4', '--seed', 'suite 10146', '--pause', '1200']

test('four kills of the real program lose no payment, refund or charge of a channel, charge none twice, and deliver none unpaid or uncounted', async () => {
  const script = join(import.meta.dir, '../soak', 'crash.ts')
  const soak = Bun.spawn([process.execPath, script, ...chosen], {
    // With the TMPDIR of the tests.
    env: process.env,
    stdout: 'pipe',
    stderr: 'pipe',
  })
  const [out, problems, code] = await Promise.all([
    soak.stdout.text(),
    soak.stderr.text(),
    soak.exited,
  ])
  if (code !== 0) throw new Error(`${out}${problems}`)
  expect(out).toMatch(/^answers received +[1-9]\d/m)
  for (const route of ['pass', 'again', 'trial', 'pool'])
    expect(out).toMatch(new RegExp(`^${route}: answered +[1-9]`, 'm'))
  expect(out).toMatch(/^channel requests: answered +[1-9]/m)
  expect(out).toMatch(/^refunds \w+: paid +[1-9]/m)
})
