import { existsSync } from 'node:fs'
import { type Browser, chromium, type Page } from 'playwright-core'

const known = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']

/**
 * Path of a Chromium on this machine, if there is one. CHROMIUM names another one, or none if
 * empty.
 */
export const chromiumPath =
  process.env.CHROMIUM === undefined
    ? (Bun.which('chromium') ?? known.find((path) => existsSync(path)))
    : process.env.CHROMIUM || undefined

/** Starts it without a window. Throws without a Chromium. */
export function startBrowser(): Promise<Browser> {
  if (chromiumPath === undefined) throw new Error('there is no Chromium')
  return chromium.launch({
    executablePath: chromiumPath,
    // Containers have neither its sandbox nor much shared memory.
    args: ['--no-sandbox', '--disable-dev-shm-usage'],
  })
}

/** Errors that a page reports while it is open. */
export function complaintsOf(page: Page): string[] {
  const complaints: string[] = []
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(message.text())
  })
  page.on('pageerror', (error) => complaints.push(error.message))
  page.on('dialog', (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  return complaints
}

const axe = await Bun.file(require.resolve('axe-core/axe.min.js')).text()

/** What axe-core finds on a page, in all its rules, as `rule: element`. */
export async function violationsOf(page: Page): Promise<string[]> {
  await page.evaluate(axe)
  return page.evaluate(`axe.run(document, { resultTypes: ['violations'] }).then((result) =>
    result.violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => id + ': ' + html)))`)
}
