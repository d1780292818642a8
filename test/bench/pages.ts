import type { Browser } from 'playwright-core'
import { chromiumPath, startBrowser } from '../harness/browser'
import { startChains } from '../harness/chains'
import type { Machine } from './machine'
import * as Report from './Report'
import * as Stats from './Stats'
import { rpcUrlsOf, shippedConfig } from './shipped'

const rounds = 9
/** Of one visit, in ms from its start. A page that is painted and whose scripts ran is interactive. */
type Visit = { answer: number; painted: number; interactive: number; bytes: number }

const nothing =
  '<!doctype html><html lang="en"><title>Empty</title><link rel="icon" href="data:,"><p>Text'

/**
 * How long Chromium takes until a visitor can use the catalogue, on loopback. Each visit has an empty
 * cache and a new window that is idle. In the same rounds a page of one paragraph shows how much of the
 * time the browser and the machine take.
 */
export async function benchPages(
  machine: Machine,
): Promise<{ rows: Report.Row[]; notes: string[] }> {
  if (chromiumPath === undefined)
    return { rows: [], notes: ['pages: NOT MEASURED, there is no Chromium'] }
  const chains = await startChains(shippedConfig().networks)
  const rpcUrls = JSON.stringify(rpcUrlsOf(chains))
  const large = JSON.stringify({ merchants: 625, routes: 16 })
  const servers = [
    {
      what: 'of the shipped file',
      atMost: 300,
      ...(await machine.serve('ours.ts', [rpcUrls])),
    },
    {
      what: 'of 10,000 routes',
      atMost: 500,
      ...(await machine.serve('catalogue.ts', [rpcUrls, large])),
    },
  ]
  const empty = serveNothing()
  const browser = await startBrowser()
  try {
    const rows: Report.Row[] = []
    const notes: string[] = []
    for (const { what, url, atMost } of servers) {
      const visits: Visit[] = []
      const emptyVisits: Visit[] = []
      for (let round = -1; round < rounds; round++) {
        const emptySeen = await machine.sample(() => visit(browser, machine, empty.url.href))
        const seen = await machine.sample(() => visit(browser, machine, url))
        if (round >= 0) emptyVisits.push(emptySeen)
        if (round >= 0) visits.push(seen)
      }
      const waits = visits.map((each) => each.interactive)
      const { median, min, max } = Stats.summarize(waits)
      rows.push({
        what: `page / ${what}, interactive`,
        against: 'a budget',
        ratio: undefined,
        ...Report.evaluate(median, { atMost }),
        ours: `${median.toFixed(0)} ms`,
        theirs: `${atMost} ms`,
      })
      const emptyMs = Stats.median(emptyVisits.map((each) => each.interactive))
      const of = (name: keyof Visit) => Stats.median(visits.map((each) => each[name])).toFixed(0)
      notes.push(
        `pages: / ${what}: ${of('bytes')} bytes, answered after ${of('answer')} ms, painted after ` +
          `${of('painted')} ms, interactive after ${median.toFixed(0)} ms [${min.toFixed(0)}..${max.toFixed(0)}], ` +
          `an empty page after ${emptyMs.toFixed(0)} ms`,
      )
    }
    return { rows, notes }
  } finally {
    await browser.close()
    await empty.stop(true)
    await Promise.all(servers.map((server) => server.stop()))
    await Promise.all(chains.map((chain) => chain.stop()))
  }
}

async function visit(browser: Browser, machine: Machine, url: string): Promise<Visit> {
  const context = await browser.newContext()
  try {
    const page = await context.newPage()
    // A new window loads the pages of its own controls, which would compete with the visit.
    await machine.settle()
    await page.goto(url, { waitUntil: 'load' })
    return await page.evaluate(timings)
  } finally {
    await context.close()
  }
}

function serveNothing() {
  return Bun.serve({
    port: 0,
    hostname: '127.0.0.1',
    fetch: () => new Response(nothing, { headers: { 'content-type': 'text/html' } }),
  })
}

const timings = `new Promise((resolve) => {
  const read = () => {
    const [page] = performance.getEntriesByType('navigation')
    const [paint] = performance.getEntriesByName('first-contentful-paint')
    const assets = performance.getEntriesByType('resource')
    if (paint === undefined || page.loadEventEnd === 0) return requestAnimationFrame(read)
    resolve({
      answer: page.responseStart,
      painted: paint.startTime,
      interactive: Math.max(paint.startTime, page.domContentLoadedEventEnd),
      bytes: [page, ...assets].reduce((sum, { transferSize }) => sum + transferSize, 0),
    })
  }
  read()
})`
