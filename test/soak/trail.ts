import { existsSync, readFileSync } from 'node:fs'
import type { Step } from './balancer'
import type { Played } from './cluster-faults'
import type { Finding } from './finding'

type Sources = {
  /** The log file of each gateway. */
  logs: readonly string[]
  /** Faults, the oldest first. */
  played: readonly Played[]
  /** What the balancer did, by serial of a purchase. */
  trail: ReadonlyMap<string, readonly Step[]>
}

type LogLine = { gateway: number; at: number; text: string; isOwn: boolean }

/** Lines so near to one of the finding are printed, ms. */
const nearMs = 100
const linesMax = 40
const lineMax = 400
/** Faults so long before a finding began may be its cause: a gateway is reaped after 10 s. */
const beforeMs = 15_000

/** For each finding: what the balancer did, the faults of that time, and the lines of the logs. */
export function createExplain({ logs, played, trail }: Sources): (finding: Finding) => string {
  return ({ text }) => {
    const ids = [...new Set(text.match(/pay_[0-9a-f]{32}|0x[0-9a-f]{64}/g) ?? [])]
    const serial = /(?:purchase |"serial":")(c\d+-\d+|r\d+|\d+-\d+)/.exec(text)?.[1] ?? ''
    const steps = trail.get(serial) ?? []
    const lines = linesOf(logs, ids)
    const times = [...steps, ...lines.filter(({ isOwn }) => isOwn)].map(({ at }) => at)
    if (times.length === 0) return ''
    const [from, until] = [Math.min(...times), Math.max(...times)]
    const near = played.filter(
      (fault) => fault.from <= until && (fault.until ?? until) >= from - beforeMs,
    )
    const all = [
      ...steps.map(({ at, gateway, did }) => ({
        at,
        text: `balancer, gateway ${gateway}: ${did}`,
      })),
      ...near.flatMap(faultLines),
      ...lines.map(({ at, gateway, text: line }) => ({ at, text: `gateway ${gateway} ${line}` })),
    ].toSorted((one, other) => one.at - other.at)
    return all.map(({ at, text: what }) => `  ${new Date(at).toISOString()} ${what}\n`).join('')
  }
}

function faultLines({ number, name, gateway, from, until }: Played) {
  const text = `fault #${number} at gateway ${gateway}: ${name}`
  return [
    { at: from, text: `${text} begins` },
    ...(until === undefined ? [] : [{ at: until, text: `${text} is over` }]),
  ]
}

/** Lines that name one of the ids, and what the same gateway wrote near them. */
function linesOf(logs: readonly string[], ids: readonly string[]): readonly LogLine[] {
  const found = logs.flatMap((file, gateway) => {
    const all = existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []
    const lines = all.flatMap((text): LogLine[] => {
      const at = Date.parse(/"time":"([^"]+)"/.exec(text)?.[1] ?? '')
      if (Number.isNaN(at)) return []
      const isOwn = ids.some((id) => text.includes(id))
      return [{ gateway, at, text: text.slice(0, lineMax), isOwn }]
    })
    const own = lines.filter(({ isOwn }) => isOwn)
    return lines.filter(({ at }) => own.some((each) => Math.abs(each.at - at) <= nearMs))
  })
  const own = found.filter(({ isOwn }) => isOwn)
  return [...own, ...found.filter(({ isOwn }) => !isOwn)].slice(0, linesMax)
}
