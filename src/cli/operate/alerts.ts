import { type PlaceOptions, placeOf } from '../../webhooks/places'
import { createPost, type PostAnswer } from '../../webhooks/post'
import { CommandError } from '../Command'
import type { Run } from '../commands'
import { configurationOf } from '../words'

/**
 * Sends a test alert to every place of the file, once, and prints what became of each. Returns the
 * exit code: 1 when one failed, or when there is none.
 */
export async function alerts(
  options: Run<'alerts'>,
  posting: Partial<PlaceOptions> = {},
): Promise<number> {
  const { file, now, out } = options
  const config = configurationOf(options)
  if (config.alerts.length === 0)
    throw new CommandError(`${file} has no [[alerts]]: add one, as docs/alerts.md shows`)
  const own = { now, ...posting }
  const post = createPost(own)
  const body = JSON.stringify({ type: 'test', timestamp: new Date(now()).toISOString(), data: {} })
  const { signal } = new AbortController()
  const sent = config.alerts.map(async (alert) => {
    const { origin, send } = placeOf(alert, config, { ...own, post })
    const fault = faultOf(await send({ id: '', body }, signal))
    const result = fault === undefined ? 'sent' : `failed: ${fault}`
    return { isSent: fault === undefined, line: `${alert.kind.padEnd(8)}  ${origin}  ${result}` }
  })
  const results = await Promise.all(sent)
  for (const { line } of results) out(line)
  return results.every(({ isSent }) => isSent) ? 0 : 1
}

function faultOf(answer: PostAnswer): string | undefined {
  if ('error' in answer) return answer.error
  return answer.status >= 200 && answer.status < 300 ? undefined : `status ${answer.status}`
}
