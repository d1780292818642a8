// Lists of tabs: https://www.w3.org/WAI/ARIA/apg/patterns/tabs/

function prepareTabs(box) {
  const tabs = [...box.querySelectorAll('[role=tab]')]
  const select = (chosen, isByKey) => {
    for (const tab of tabs) {
      const isChosen = tab === chosen
      tab.setAttribute('aria-selected', String(isChosen))
      tab.tabIndex = isChosen ? 0 : -1
      document.getElementById(tab.getAttribute('aria-controls')).hidden = !isChosen
    }
    if (isByKey) chosen.focus()
  }
  const moves = { ArrowRight: 1, ArrowLeft: -1 }
  box.querySelector('[role=tablist]').addEventListener('keydown', (event) => {
    const at = tabs.indexOf(event.target)
    const ends = { Home: 0, End: tabs.length - 1 }
    const next = ends[event.key] ?? at + (moves[event.key] ?? Number.NaN)
    if (at < 0 || Number.isNaN(next)) return
    event.preventDefault()
    select(tabs[(next + tabs.length) % tabs.length], true)
  })
  for (const tab of tabs) tab.addEventListener('click', () => select(tab, false))
  select(tabs[0], false)
  box.classList.add('ready')
}

for (const box of document.querySelectorAll('.tabs')) prepareTabs(box)
