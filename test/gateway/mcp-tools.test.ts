import { expect, test } from 'bun:test'
import { createMcp } from '../../src/gateway/mcp/endpoint'
import { createBudget } from '../../src/http/body'
import { createRateLimit } from '../../src/http/rate-limit'
import { silent } from '../../src/log'
import type * as Network from '../../src/protocol/Network'
import { config, merchant, route } from '../harness/merchants'

/** Names of the tools that are listed while these networks can settle. */
async function listed(...ready: readonly Network.Id[]): Promise<string[]> {
  const mcp = createMcp({
    config: config([
      merchant('weather', { routes: [route('/forecast')] }),
      merchant('wiki', { networks: ['eip155:8453'], routes: [route('/summary')] }),
      merchant('closed', { outOfService: 'KEY', routes: [route('/x')] }),
    ]),
    gateway: {
      handle() {
        throw new Error('a list buys nothing')
      },
    },
    isReady: (network) => ready.includes(network),
    budget: createBudget(1_000_000),
    rateLimit: createRateLimit(),
    now: () => 0,
    log: silent,
  })
  const request = new Request('http://localhost/mcp', {
    method: 'POST',
    headers: {
      host: 'localhost',
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/list' }),
  })
  const response = await mcp.handle(request, () => undefined)
  const { result } = (await response.json()) as { result: { tools: { name: string }[] } }
  return result.tools.map(({ name }) => name)
}

test('a tool is listed while one of its networks can settle', async () => {
  expect(await listed('eip155:4663', 'eip155:8453')).toEqual(['weather-forecast', 'wiki-summary'])
  expect(await listed('eip155:4663')).toEqual(['weather-forecast'])
})

test('while no network can settle, all tools stay listed', async () => {
  expect(await listed()).toEqual(['weather-forecast', 'wiki-summary'])
})
