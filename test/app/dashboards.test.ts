import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { heldReasons, refundReasons } from '../../db/Order'
import { account } from '../../src/demo/accounts'
import { buyWithMppx } from '../../src/demo/buyers'
import type { Family } from '../../src/http/metrics'
import { documented, renderApi, routedPaths } from '../harness/api-reference'
import { labelMeanings, renderMetrics } from '../harness/metrics-reference'
import { renderTroubleshooting, tableNames } from '../harness/troubleshooting'
import { type TestWorld, testWorld } from '../harness/world'

/** The generated pages, the dashboard and the alert rules, beside a running gateway. */

const root = join(import.meta.dir, '../..')
const rulesFile = join(root, 'deploy/prometheus/alerts.yaml')
const read = (path: string) => Bun.file(join(root, path)).text()

type Rule = { alert: string; expr: string; labels: object; annotations: Record<string, string> }
const rules = Bun.YAML.parse(await Bun.file(rulesFile).text()) as { groups: { rules: Rule[] }[] }
type Panel = { title: string; type: string; targets?: { expr: string; legendFormat: string }[] }
const dashboard = JSON.parse(await read('deploy/grafana/dashboard.json')) as { panels: Panel[] }

let world: TestWorld
let families: Family[]
/** Metrics of `/metrics` by name, with the labels that its samples have. */
let exposed: Map<string, Set<string>>

beforeAll(async () => {
  world = await testWorld({ exchange: true })
  families = world.app.metrics()
  const url = `${world.url}/m/weather/forecast?latitude=52.52&longitude=13.41`
  expect((await buyWithMppx(world, url, account(1))).response.status).toBe(200)
  exposed = parse(await (await fetch(`${world.url}/metrics`)).text())
})
afterAll(() => world?.stop())

function parse(text: string): Map<string, Set<string>> {
  const found = new Map<string, Set<string>>()
  for (const [, name = ''] of text.matchAll(/^# TYPE (\w+) /gm)) found.set(name, new Set())
  for (const [, sample = '', labels = ''] of text.matchAll(/^(\w+)\{([^\n]*)\} /gm)) {
    const set = found.get(familyOf(sample, found))
    for (const [, label = ''] of labels.matchAll(/(\w+)="/g)) set?.add(label)
  }
  return found
}

/** The samples of a histogram have endings. */
function familyOf(sample: string, known: { has(name: string): boolean }): string {
  return known.has(sample) ? sample : sample.replace(/_(bucket|sum|count)$/, '')
}

/** Why a query cannot work: a metric or a label that does not exist. */
function faultsOf(query: string): string[] {
  const faults: string[] = []
  const plain = query.replaceAll(/"[^"]*"/g, '""')
  const names = [...plain.matchAll(/\bturnpike_\w+/g)].map(([name]) => name)
  if (names.length === 0 && !/^up\{job=""\}/.test(plain)) faults.push('no metric of ours')
  const known = new Map(families.map((family) => [family.name, family]))
  const labels = new Set<string>()
  for (const name of names) {
    const family = known.get(familyOf(name, known))
    if (family === undefined || !exposed.has(family.name)) faults.push(`no metric ${name}`)
    for (const label of family?.labels ?? []) labels.add(label)
    if (name.endsWith('_bucket')) labels.add('le')
  }
  for (const [, name = '', inner = ''] of plain.matchAll(/\b(turnpike_\w+)\{([^}]*)\}/g))
    for (const [, label = ''] of inner.matchAll(/(\w+)\s*(?:=~|!~|!=|=)/g))
      if (known.get(familyOf(name, known))?.labels.includes(label) !== true)
        faults.push(`${name} has no label ${label}`)
  for (const [, list = ''] of plain.matchAll(/\b(?:by|on|ignoring|without) \(([^)]*)\)/g))
    for (const label of list.split(',').map((each) => each.trim()))
      if (!labels.has(label)) faults.push(`no label ${label} to group by`)
  return faults
}

/** Labels that a text of Prometheus or Grafana names. */
function named(text: string): string[] {
  return [...text.matchAll(/\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}/g)].map(([, label = '']) => label)
}

describe('alert rules', () => {
  const all = rules.groups.flatMap((group) => group.rules)

  test('every query of a rule names metrics and labels of a running gateway', () => {
    expect(all.length).toBeGreaterThan(15)
    const faults = all.flatMap(({ alert, expr }) => faultsOf(expr).map((fault) => [alert, fault]))
    expect(faults).toEqual([])
  })

  test('every rule has a severity, and its texts name labels of its metrics', () => {
    const names = new Set<string>()
    for (const { alert, expr, labels, annotations } of all) {
      expect(names.has(alert)).toBe(false)
      names.add(alert)
      expect(labels).toEqual({ severity: expect.stringMatching(/^(warning|critical)$/) })
      const { summary = '', description = '' } = annotations
      expect([alert, summary !== '', description !== '']).toEqual([alert, true, true])
      const used = new Set([...expr.matchAll(/turnpike_\w+/g)].map(([name]) => name))
      const has = families
        .filter(({ name }) => used.has(name))
        .flatMap((family) => [...family.labels])
      for (const label of named(summary + description)) expect(has).toContain(label)
    }
  })

  test('error: a query with a metric or a label that does not exist is found', () => {
    expect(faultsOf('turnpike_gone == 0')).toEqual(['no metric turnpike_gone'])
    expect(faultsOf('turnpike_network_ready{merchant="a"}')).toEqual([
      'turnpike_network_ready has no label merchant',
    ])
    expect(faultsOf('sum by (merchant) (turnpike_network_ready)')).toEqual([
      'no label merchant to group by',
    ])
  })

  test.skipIf(Bun.which('promtool') === null)('promtool accepts the rules', () => {
    const { exitCode, stdout, stderr } = Bun.spawnSync(['promtool', 'check', 'rules', rulesFile])
    expect([exitCode, `${stdout}${stderr}`]).toEqual([0, expect.stringContaining('SUCCESS')])
  })
})

test('every query of the dashboard names metrics and labels of a running gateway', () => {
  const targets = dashboard.panels.flatMap(({ title, targets = [] }) =>
    targets.map((target) => ({ title, ...target })),
  )
  expect(targets.length).toBeGreaterThan(30)
  const faults = targets.flatMap(({ title, expr }) => faultsOf(expr).map((fault) => [title, fault]))
  expect(faults).toEqual([])
  for (const { expr, legendFormat } of targets) {
    const used = families.filter(({ name }) => expr.includes(name))
    for (const label of named(legendFormat))
      expect(used.flatMap(({ labels }) => [...labels])).toContain(label)
  }
})

test('the dashboard shows every metric', () => {
  const text = JSON.stringify(dashboard)
  expect(families.map(({ name }) => name).filter((name) => !text.includes(name))).toEqual([])
})

describe('generated pages', () => {
  test('the page of the metrics is current, and each label has a meaning', async () => {
    expect(await read('docs/metrics.md')).toBe(renderMetrics(families))
    const used = new Set(families.flatMap(({ labels }) => [...labels]))
    expect([...used].toSorted()).toEqual(Object.keys(labelMeanings).toSorted())
  })

  test('/metrics has the described metrics, with no other label', () => {
    expect([...exposed.keys()].toSorted()).toEqual(families.map(({ name }) => name))
    for (const { name, labels } of families)
      for (const label of exposed.get(name) ?? []) expect([...labels, 'le']).toContain(label)
    expect(exposed.get('turnpike_payments_total')?.size).toBe(3)
  })

  test('the page of the API is current', async () => {
    expect(await read('docs/api.md')).toBe(renderApi(await read('merchants.toml')))
  })

  test('the page of the API lists every path with the methods that it answers', async () => {
    expect(documented.map(({ path }) => path).toSorted()).toEqual(routedPaths().toSorted())
    for (const { path, methods } of documented) {
      if (path === '/m/*') continue
      const answer = await fetch(world.url + path.replace(/:\w+/g, 'x'), {
        method: 'OPTIONS',
      })
      const allowed = (answer.headers.get('allow') ?? '').split(', ')
      const own = allowed.filter((each) => each !== 'HEAD' && each !== 'OPTIONS')
      expect([path, own.join(', ')]).toEqual([path, methods])
    }
  })

  test('the tables of troubleshooting are current', async () => {
    const page = await read('docs/troubleshooting.md')
    expect(page).toBe(renderTroubleshooting(page))
    for (const name of tableNames) expect(page).toContain(`<!-- generated: ${name} -->`)
  })

  test('troubleshooting has every reason of a pause, and stocks every reason of an order', async () => {
    const page = (await read('docs/troubleshooting.md')).replaceAll('`', '')
    const names = ['state/health', 'send/relayer', 'send/broadcast']
    const [health, ...sends] = await Promise.all(
      names.map((name) => read(`src/settlement/${name}.ts`)),
    )
    const sending = sends.join('')
    const texts = [
      ...`${health}${sending}`.matchAll(/(?:return|reason =|\?) `([^`]{20,})`/g),
      ...sending.matchAll(/(?:reason: |\? )'([a-z][^']* [^']*)'/g),
    ].map(([, text = '']) => text)
    expect(texts.length).toBeGreaterThan(8)
    // The parts between the values that differ.
    const parts = texts.flatMap((text) => text.replaceAll(/["']/g, '').split(/\$\{[^}]*\}/))
    const named = parts.map((part) => part.trim()).filter((part) => /[a-zA-Z]{3}/.test(part))
    expect(named.filter((part) => !page.includes(part))).toEqual([])
    const stocks = await read('docs/stocks.md')
    for (const reason of [...refundReasons, ...heldReasons])
      expect(stocks).toContain(`| \`${reason}\` |`)
  })

  test('error: a comment that names no table is found', () => {
    expect(() => renderTroubleshooting('<!-- generated: gone -->\n<!-- end -->')).toThrow('gone')
  })
})
