// Sets the chosen theme before the page is drawn; a module would run after it.
document.documentElement.dataset.theme = localStorage.getItem("sbert-search theme") ?? "auto";
