import { Database } from 'bun:sqlite'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'bun:test'
import { mkdirSync, statSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import { account } from '../../src/demo/accounts'
import { balanceOf } from '../../src/demo/chains'
import { executable } from '../harness/executable'
import {
  type Agent,
  type AgentOptions,
  newState,
  removeStates,
  startAgent,
  startTap,
  textsOf,
} from '../harness/mcp-wallet'
import { type TestWorld, testWorld, until } from '../harness/world'

// Chains and programs start, perhaps beside other work.
let world: TestWorld
let tap: ReturnType<typeof startTap>
const agents: Agent[] = []
beforeAll(async () => {
  world = await testWorld()
  tap = startTap(`${world.url}/mcp`)
})
afterEach(async () => {
  tap.script = undefined
  tap.messages.length = 0
  for (const agent of agents.splice(0)) await agent.close()
})
afterAll(async () => {
  tap?.stop()
  await world?.stop()
  removeStates()
})

const start = async (options: Omit<AgentOptions, 'url'>) => {
  const agent = await startAgent({ url: tap.url, ...options })
  agents.push(agent)
  return agent
}

const forecast = (longitude = 13.41) => ({
  latitude: 52.52,
  longitude,
  current: 'temperature_2m',
})

/** USDC of the first network that is offered, paid to the service so far. */
async function paid(): Promise<bigint> {
  const chain = world.chains['eip155:8453']
  const asset = world.config.networks.find(({ id }) => id === 'eip155:8453')?.asset
  if (chain === undefined || asset === undefined) throw new Error('no chain')
  return balanceOf(chain, asset.address, world.config.service.payout)
}
const onBase = ['--network', 'eip155:8453']

function rows(state: string) {
  const db = new Database(state, { readonly: true })
  try {
    return db.query('SELECT * FROM payments ORDER BY signed_at').all() as Record<string, unknown>[]
  } finally {
    db.close()
  }
}

describe('an agent with an ordinary MCP client', () => {
  test('an agent lists the tools with their prices, buys, and gets the cost', async () => {
    const state = newState()
    const agent = await start({ state, args: onBase })
    const { tools } = await agent.client.listTools()
    expect(tools.length).toBeGreaterThan(36)
    expect(tools[0]?.name).toBe('turnpike_budget')
    const tool = tools.find(({ name }) => name === 'weather-forecast')
    expect(tool?.description).toContain('Costs 0.005000 USD per call')
    expect(tool?.inputSchema).toMatchObject({ required: ['latitude', 'longitude'] })
    expect(agent.client.getInstructions()).toContain('at most 0.05 USD for one call')

    const before = await paid()
    const result = await agent.call('weather-forecast', forecast())
    expect(result.isError).toBeFalsy()
    const [answer, cost] = result.content
    if (answer?.type !== 'text' || cost?.type !== 'text') throw new Error('no text')
    expect(JSON.parse(answer.text).current.temperature_2m).toBeNumber()
    expect(cost.text).toMatch(
      /^\[turnpike\] Cost: 0\.005000 USDC on eip155:8453, transaction 0x[0-9a-f]{64}\. Today 0\.005 of at most 2 USD are spent; the limit resets at \d{4}-\d\d-\d\dT00:00:00Z\.$/,
    )
    expect((await paid()) - before).toBe(5000n)

    const budget = textsOf(await agent.call('turnpike_budget'))
    expect(budget).toContain(`The wallet ${account(1).address} pays for the tools of ${tap.url}.`)
    expect(budget).toContain('Limits: 0.05 USD for one call, 2 USD a day (UTC).')
    expect(budget).toContain('Today: 0.005 USD in 1 payments, 1.995 USD left. Resets at ')
    expect(statSync(state).mode & 0o777).toBe(0o600)
    expect(agent.faults).toEqual([])
    expect(agent.stderr()).toContain(`paid by ${account(1).address}; state in ${state}`)
    expect(agent.stderr()).not.toContain(account(1).privateKey.slice(2))
  })

  test('error: the limit of the day stops an agent, also after a restart, until it is raised', async () => {
    const state = newState()
    const limits = { state, perDay: '0.012', args: onBase }
    const before = await paid()
    const first = await start(limits)
    for (const longitude of [1, 2])
      expect((await first.call('weather-forecast', forecast(longitude))).isError).toBeFalsy()
    const refused = await first.call('weather-forecast', forecast(3))
    expect(refused.isError).toBe(true)
    expect(textsOf(refused)).toMatch(
      /^The call costs 0\.005000 USDC on eip155:8453\. Today 0\.01 of at most 0\.012 USD are spent or signed, so 0\.002 USD are left, and nothing was paid\. The limit resets at \d{4}-\d\d-\d\dT00:00:00Z\. Wait until then, choose a cheaper tool, or ask the user to raise --max-per-day\.$/,
    )
    await first.close()
    const second = await start(limits)
    expect(textsOf(await second.call('weather-forecast', forecast(3)))).toContain(
      'The limit resets at',
    )
    await second.close()
    expect((await paid()) - before).toBe(10_000n)
    const third = await start({ ...limits, perDay: '0.015' })
    expect((await third.call('weather-forecast', forecast(3))).isError).toBeFalsy()
    expect((await paid()) - before).toBe(15_000n)
    expect(tap.payments()).toHaveLength(3)
  })

  test('error: a call above the limit of a call is refused before anything is signed', async () => {
    const state = newState()
    const agent = await start({ state, perCall: '0.004', args: onBase })
    const { tools } = await agent.client.listTools()
    expect(tools.find(({ name }) => name === 'weather-forecast')?.description).toEndWith(
      'This wallet signs at most 0.004 USD for one call, which is below that price: a call is refused when it costs more.',
    )
    const refused = await agent.call('weather-forecast', forecast())
    expect(refused.isError).toBe(true)
    expect(textsOf(refused)).toBe(
      'The call costs 0.005000 USDC on eip155:8453. This wallet signs at most 0.004 USD for one call, ' +
        'so nothing was paid. Make a smaller request, choose a cheaper tool, or ask the user to raise ' +
        '--max-per-call.',
    )
    expect(rows(state)).toEqual([])
    expect(tap.payments()).toEqual([])
  })

  test('attack: two processes with calls at once share the limit of the day', async () => {
    const state = newState()
    const limits = { state, perDay: '0.021', args: onBase }
    const both = await Promise.all([start(limits), start(limits)])
    const before = await paid()
    const results = await Promise.all(
      both.flatMap((agent, of) =>
        [1, 2, 3, 4].map((at) => agent.call('weather-forecast', forecast(20 + 4 * of + at))),
      ),
    )
    expect(results.filter(({ isError }) => !isError)).toHaveLength(4)
    for (const result of results.filter(({ isError }) => isError))
      expect(textsOf(result)).toContain('of at most 0.021 USD are spent or signed')
    expect((await paid()) - before).toBe(20_000n)
    expect(rows(state)).toHaveLength(4)
  })
})

test('attack: two processes with the same call at once pay once, and both get the answer', async () => {
  const state = newState()
  const both = await Promise.all([start({ state, args: onBase }), start({ state, args: onBase })])
  const before = await paid()
  const second = Promise.withResolvers<void>()
  tap.script = async ({ params }, forward) => {
    if (params._meta === undefined) return forward()
    if (tap.payments().length === 2) second.resolve()
    await second.promise
    return forward()
  }
  const results = await Promise.all(
    both.map((agent) => agent.call('weather-forecast', forecast(50))),
  )
  for (const result of results) expect(textsOf(result)).toContain('"temperature_2m"')
  expect(new Set(tap.payments()).size).toBe(1)
  expect(rows(state)).toHaveLength(1)
  expect((await paid()) - before).toBe(5000n)
})

describe('a process that is killed', () => {
  /** Ends an agent with SIGKILL when its payment arrives at the gateway. */
  async function killAtPayment(state: string, then: 'drop' | 'forward') {
    const agent = await start({ state, args: onBase })
    const killed = Promise.withResolvers<Response>()
    tap.script = async ({ params }, forward) => {
      if (params._meta === undefined) return forward()
      // The payment has left the process, so it is on the disk.
      expect(rows(state)).toMatchObject([{ state: 'open', used_micros: '5000' }])
      if (then === 'drop') {
        process.kill(agent.pid, 'SIGKILL')
        return killed.promise
      }
      const response = await forward()
      const body = await response.text()
      process.kill(agent.pid, 'SIGKILL')
      expect(body).toContain('payment-response')
      return killed.promise
    }
    const end = await agent.call('weather-forecast', forecast(30)).then(
      () => 'answered',
      () => 'closed',
    )
    expect(end).toBe('closed')
    killed.resolve(new Response())
    tap.script = undefined
  }

  for (const then of ['drop', 'forward'] as const)
    test(`after SIGKILL ${then === 'drop' ? 'before' : 'after'} the settlement the same call presents the same payment, which moves once`, async () => {
      const state = newState()
      const before = await paid()
      await killAtPayment(state, then)
      expect((await paid()) - before).toBe(then === 'drop' ? 0n : 5000n)
      const agent = await start({ state, perDay: '0.008', args: onBase })
      expect(textsOf(await agent.call('turnpike_budget'))).toContain(
        'Unfinished, signed, its end is not known: weather-forecast with {"current":"temperature_2m",' +
          '"latitude":52.52,"longitude":30}, 0.005000 USDC. The same call costs nothing more.',
      )
      // The signed payment counts, so nothing else fits.
      const other = await agent.call('weather-forecast', forecast(31))
      expect(textsOf(other)).toContain('Today 0.005 of at most 0.008 USD are spent or signed')
      const result = await agent.call('weather-forecast', forecast(30))
      expect(textsOf(result)).toContain('Cost: 0.005000 USDC on eip155:8453')
      expect(result.isError).toBeFalsy()
      expect((await paid()) - before).toBe(5000n)
      const [first, second] = tap.payments()
      expect(second).toBe(first ?? '')
      expect(tap.payments()).toHaveLength(2)
      expect(rows(state)).toMatchObject([{ state: 'delivered', credential: '' }])
    })

  test('after SIGTERM a process finishes the call in progress and ends', async () => {
    const state = newState()
    const agent = await start({ state, args: onBase })
    const arrived = Promise.withResolvers<void>()
    const held = Promise.withResolvers<void>()
    tap.script = async ({ params }, forward) => {
      if (params._meta !== undefined) {
        arrived.resolve()
        await held.promise
      }
      return forward()
    }
    const call = agent.call('weather-forecast', forecast(40)).catch(() => undefined)
    await arrived.promise
    process.kill(agent.pid, 'SIGTERM')
    held.resolve()
    expect(textsOf((await call) ?? { content: [] })).toContain('Cost: 0.005000 USDC')
    const isRunning = () => {
      try {
        return process.kill(agent.pid, 0)
      } catch {
        return false
      }
    }
    await until('the process has ended', () => !isRunning())
    expect(rows(state)).toMatchObject([{ state: 'delivered' }])
  })
})

describe('llms.txt', () => {
  const blocks = async (language: string) => {
    const text = await (await fetch(`${world.url}/llms.txt`)).text()
    const found = text.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\`$`, 'gm'))
    return [...found].map(([, block = '']) => block.replaceAll('http://localhost', world.url))
  }

  for (const [index, name] of ['x402', 'MPP'].entries())
    test(`the TypeScript of llms.txt for ${name} buys as it is`, async () => {
      const code = (await blocks('ts'))[index] ?? ''
      expect(code).toContain(index === 0 ? '@x402/fetch' : 'mppx/client')
      const child = Bun.spawn([process.execPath, 'run', '-'], {
        cwd: import.meta.dir,
        env: { ...process.env, PAY_KEY: account(5).privateKey },
        stdin: new Blob([code]),
        stdout: 'pipe',
        stderr: 'pipe',
      })
      const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()])
      expect(err).toBe('')
      expect(out).toStartWith('200 {')
    })

  test('the set-ups of clients in llms.txt start a wallet with the tools of this service', async () => {
    const [generic = '', code = ''] = await blocks('json')
    const { turnpike } = JSON.parse(generic).mcpServers
    expect(JSON.parse(code).servers.turnpike).toEqual({ type: 'stdio', ...turnpike })
    const [shell = ''] = await blocks('sh')
    expect(shell).toEndWith(`-- ${[turnpike.command, ...turnpike.args].join(' ')}\n`)
    expect(turnpike.args[1]).toBe(world.url)
    const secret = newState()
    mkdirSync(dirname(secret), { recursive: true })
    writeFileSync(secret, account(1).privateKey)
    const transport = new StdioClientTransport({
      command: executable,
      args: [...turnpike.args, '--state', newState()],
      env: { PAY_KEY_FILE: secret },
      stderr: 'ignore',
    })
    const client = new Client({ name: 'set up', version: '1' })
    await client.connect(transport)
    const { tools } = await client.listTools()
    expect(tools.length).toBeGreaterThan(36)
    await client.close()
  })
})
