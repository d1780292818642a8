import { afterAll, beforeAll, describe, expect, test } from 'bun:test'
import { join } from 'node:path'
import { account } from '../../src/demo/accounts'
import * as Commands from '../../src/web/public/Commands'
import * as Example from '../../src/web/public/Example'
import { configOf, small } from '../harness/config'
import { param, route } from '../harness/merchants'
import { mppx } from '../harness/mppx'
import { testWorld } from '../harness/world'

/** The page of a merchant: its request, its commands, and the addresses that lead to it. */

type World = Awaited<ReturnType<typeof testWorld>>
let world: World
beforeAll(async () => {
  world = await testWorld()
})
afterAll(() => world.stop())

describe('commands', () => {
  test('an example has the required parameters and those with an example', () => {
    const params = [
      param('iso', { in: 'tail', required: true, example: 'DE' }),
      param('indicator', { in: 'tail', required: true, schema: { const: 'indicator' } }),
      param('{code}.json', { in: 'tail', required: true, example: 'A B' }),
      param('more', { in: 'tail' }),
      param('page[size]', { example: 10 }),
      param('skipped'),
    ]
    expect(Example.from('world', route('/indicator', { params })).target).toBe(
      '/m/world/indicator/DE/indicator/A%20B.json?page%5Bsize%5D=10',
    )
  })

  test('quotes cannot leave their command', () => {
    const example = { method: 'POST', target: '/m/a/b', body: `{"a":"it's $(id)\\\\"}` } as const
    const [curl, , program] = Commands.of(example, {
      baseUrl: 'http://localhost',
      network: configOf(small).networks[0],
      priceAtomic: 5000n,
    })
    const echoed = Bun.spawnSync(['sh', '-c', `printf '%s\\n' ${curl?.text.slice('curl '.length)}`])
    expect(echoed.stdout.toString().split('\n')).toContain(example.body)
    const literal = /body: ('.*'),/.exec(program?.text ?? '')?.[1] ?? ''
    expect(new Function(`return ${literal}`)()).toBe(example.body)
  })
})

describe('the commands of the page', () => {
  const root = join(import.meta.dir, '../..')
  const payKey = account(1).privateKey

  /** In the form of the demo's page, whose base_url has no port. */
  async function commandsOf(path: string): Promise<string[]> {
    return codesOf(await (await fetch(world.url + path)).text()).map((code) =>
      code.replaceAll('http://localhost/', `${world.url}/`),
    )
  }

  async function run(command: readonly string[]): Promise<string> {
    const child = Bun.spawn([...command], {
      cwd: root,
      env: { PATH: process.env.PATH, HOME: world.dataDir, PAY_KEY: payKey },
      stdout: 'pipe',
      stderr: 'pipe',
    })
    const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
    return (await child.exited) === 0 ? out : problems
  }

  test.concurrent('curl shows the 402, mppx and @x402/fetch buy', async () => {
    const [curl = '', command = '', program = ''] = await commandsOf(
      '/merchants/weather?route=/forecast',
    )
    const mppxHere = command.replace('npx mppx', `'${process.execPath}' '${mppx}'`)
    const answers = await Promise.all([
      Bun.which('curl') === null ? 'HTTP/1.1 402' : run(['sh', '-c', curl]),
      run(['sh', '-c', mppxHere]),
      run([process.execPath, '-e', program]),
    ])
    expect(answers[0]).toStartWith('HTTP/1.1 402')
    expect(answers[1]).toContain('temperature_2m')
    expect(answers[2]).toContain('temperature_2m')
  })

  test.skipIf(Bun.which('python3') === null)(
    'the Python of a GET and of a POST compiles, and asks for what the page shows',
    async () => {
      for (const path of ['/merchants/weather?route=/forecast', '/merchants/assistant']) {
        const program = (await commandsOf(path)).find((code) => code.startsWith('import os')) ?? ''
        const check = `import ast, sys
tree = ast.parse(sys.stdin.read())
compile(tree, 'program', 'exec')
calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
print([ast.literal_eval(call.args[0]) for call in calls
       if isinstance(call.func, ast.Attribute) and call.func.attr in ('get', 'post')][0])`
        const child = Bun.spawn(['python3', '-c', check], {
          stdin: new Blob([program]),
          stdout: 'pipe',
          stderr: 'pipe',
        })
        const [out, problems] = await Promise.all([child.stdout.text(), child.stderr.text()])
        expect(problems).toBe('')
        expect(out).toStartWith(`${world.url}/m/`)
      }
    },
  )

  test.concurrent('a POST is bought with its body', async () => {
    const [, command = '', program = ''] = await commandsOf('/merchants/assistant')
    const mppxHere = command.replace('npx mppx', `'${process.execPath}' '${mppx}'`)
    const answers = await Promise.all([
      run(['sh', '-c', mppxHere]),
      run([process.execPath, '-e', program]),
    ])
    for (const answer of answers) expect(answer).toContain('chat.completion')
  })
})

/** The code of the tabs of a page. */
function codesOf(text: string): string[] {
  const codes = text.matchAll(/<code data-templates="[^"]*">([^<]*)<\/code>/g)
  return [...codes].map(([, code = '']) => unescaped(code))
}

function unescaped(text: string): string {
  const names = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'" }
  return text.replace(/&(amp|lt|gt|quot|#39);/g, (_, name: keyof typeof names) => names[name])
}

const navigation = { accept: 'text/html', 'sec-fetch-mode': 'navigate' }

describe('the address of a merchant', () => {
  const get = (path: string, headers: Record<string, string> = {}) =>
    fetch(world.url + path, { headers, redirect: 'manual' })

  test('the address of a merchant leads a browser to its page, and a program sees no difference', async () => {
    for (const path of ['/m/weather', '/m/weather/']) {
      const visit = await get(path, navigation)
      expect([visit.status, visit.headers.get('location')]).toEqual([302, '/merchants/weather'])
      const program = await get(path, { accept: '*/*' })
      expect(program.status).toBe(404)
      expect(await program.json()).toMatchObject({ code: 'not-found' })
    }
    expect((await get('/m/nothing', navigation)).status).toBe(404)
    expect((await get('/m/weather/nothing', navigation)).status).toBe(404)
    const paid = await get('/m/weather/geocode?name=Berlin', navigation)
    expect(paid.status).toBe(402)
    expect(await paid.text()).toContain(
      '<a href="/merchants/weather">Weather</a> sells this answer',
    )
  })

  test('error: an unknown merchant is a page with 404', async () => {
    const response = await get('/merchants/%3Cb%3E')
    expect(response.status).toBe(404)
    expect(response.headers.get('content-type')).toBe('text/html; charset=utf-8')
    const text = await response.text()
    expect(text).toContain('No merchant has this address. The catalogue lists all of them.')
    expect(text).toContain('<a class="button" href="/">')
    expect((await fetch(`${world.url}/merchants/weather`, { method: 'POST' })).status).toBe(405)
  })
})

describe('the page of a merchant', () => {
  const textOf = async (path: string) => (await fetch(world.url + path)).text()

  test('without scripts the form of a merchant puts the values into the commands', async () => {
    const query = new URLSearchParams({
      route: '/forecast',
      'p.latitude': "1'5",
      'p.longitude': '2,5',
      'p.current': '',
    })
    const [curl, , program] = codesOf(await textOf(`/merchants/weather?${query}`))
    const path = '/m/weather/forecast?latitude=1'
    expect(curl).toBe(`curl -i 'http://localhost${path}'\\''5&longitude=2,5'`)
    expect(program).toContain(`await pay('http://localhost${path}\\'5&longitude=2,5')`)
  })

  test('the page of a merchant names the MCP tool of the route', async () => {
    const text = await textOf('/merchants/weather?route=/forecast')
    expect(text).toContain('The tool is weather-forecast.')
    expect(codesOf(text).at(-1)).toContain('"--max-per-call", "0.005"')
  })

  test('a route with a meter has its ceiling and what its units cost', async () => {
    const text = await textOf('/merchants/assistant')
    expect(text).toContain('<span class="price">up to $0.05</span> for one request')
    expect(text).toContain(
      '<th scope="row">assistant-fast</th><td class="number">$0.60 / 1M</td><td class="number">$3.60 / 1M</td>',
    )
  })

  test('a parameter with few values is a list of them', async () => {
    const text = await textOf('/merchants/defi?route=/stablecoins')
    expect(text).toMatch(/<select id="p-0" name="p.includePrices"[^>]*><option value="">not set/)
    expect(text).toContain('<option value="true" selected>true</option>')
  })
})
